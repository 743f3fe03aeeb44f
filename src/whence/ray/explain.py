"""`Explain`: batches of a Ray dataset in, rows of explanations out."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, SupportsIndex

from whence._util.defaults import METHOD
from whence._util.extras import import_extra
from whence.distributed.columns import find_content_column, find_id_column
from whence.distributed.contents import make_items
from whence.distributed.row_explainer import RowExplainer
from whence.distributed.rows import RowForm, ScoreType, make_table
from whence.distributed.settings import RunSettings
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.methods.registry import MethodSpecification
from whence.models import ModelObject, resolve
from whence.pipeline import ExplainSettings
from whence.targets import AnyTarget, SeveralTargets

# Where a row's id is looked for if there is neither "id" nor "__key__": what Ray's readers add.
_PATHS = ("path",)


@dataclass(frozen=True)
class _AnyTargets(ExplainSettings):
    """Settings whose targets are given as `Explainer.explain` takes them."""

    arguments: dict[str, Any] = field(default_factory=dict)

    def target_arguments(self) -> dict[str, Any]:
        """Return the targets."""
        return dict(self.arguments)


class Explain:
    """Explain the photos, texts or prompts of a Ray dataset, in an actor that loads a model once.

    For `ray.data.Dataset.map_batches`, with the arguments below as ``fn_constructor_kwargs`` and
    any ``batch_format``. Each input gives one row with the columns id, target, name, probability,
    scores, grid, tokens, words, checks, notes, error and fingerprint. An input that cannot be
    explained gives a row whose error says why. A language model's next token is explained.

    Args:
        model: As `whence.explain` takes it: a name, a folder, or a model object, which is sent to
            the actors; the embedded model that suits the inputs if left out.
        target: What to explain, as for `whence.explain`.
        against: Why the target and not this one.
        classes: Instead of target, several targets, or a number k for the top k.
        method: Any of ``methods.available()``.
        rules: The relevance rules, by name.
        column: The column that holds photos (arrays of pixels, contents of files, or paths) or
            texts; found by its name and type if left out.
        id: The column that tells rows apart; "id", "__key__" or "path" if left out.
        keep: Columns of the dataset that the rows keep.
        kind: ``"image"`` or ``"text"``; only needed if the column may be both.
        processor: For a model object, as for `whence.explain`.
        of: Which of the model's inputs gets scores; its main one if left out.
        weights: A safetensors file, for ``timm:NAME`` and ``torchvision:NAME``.
        device: Where a model by name runs; the actor's GPU if it has one, otherwise the CPU.
        batch: How many inputs are explained at once.
        memory: Gibibytes, as `Explainer.explain` takes them.
        compile: Whether to compile explanations of batches of one shape.
        precision: Of matrix products: ``"tf32"`` on a GPU, or ``"bfloat16"``.
        verify: Whether to measure all checks, also those that take time.
        scores: The type of scores in the rows, ``"float32"`` or ``"float16"``.
        threads: How many photos are prepared at once.
        **options: Of the method.

    Raises:
        WhenceError: The model, the method or the target is wrong. It ends the pipeline.
    """

    def __init__(
        self,
        model: str | Path | ModelObject | None = None,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
        method: str = METHOD,
        rules: str = "stable",
        *,
        column: str | None = None,
        id: str | None = None,
        keep: Sequence[str] = (),
        kind: Kind | None = None,
        processor: object = None,
        of: str | None = None,
        weights: str | Path | None = None,
        device: str | None = None,
        batch: int = 16,
        memory: float | None = None,
        compile: bool = False,
        precision: str | None = None,
        verify: bool = False,
        scores: ScoreType = "float32",
        threads: int | None = None,
        **options: Any,
    ) -> None:
        import_extra("ray.data", "ray[data]", "ray")
        is_named = model is None or isinstance(model, str | Path)
        named, top = _name_targets(target, classes)
        given = {"target": target, "against": against, "classes": classes}
        explain = _AnyTargets(
            methods=(MethodSpecification(method, method, options, rules),),
            model=str(model) if is_named and model is not None else None,
            weights=None if weights is None else Path(weights),
            device=device,
            targets=named,
            top=top,
            batch=batch,
            memory=memory,
            compile=compile,
            precision=precision,
            verify=verify,
            of=of,
            against=None if against is None else _describe(against),
            arguments={name: value for name, value in given.items() if value is not None},
        )
        self._settings = RunSettings(explain, kind, column, id, scores, threads=threads)
        self._settings.check()
        self._keep = [keep] if isinstance(keep, str) else list(keep)
        self._column = column
        self._found = ""  # the column of the last batch
        self._id = id
        self._kind = kind
        self._explainer: RowExplainer | None = None
        if not is_named:
            loaded = resolve(model, kind, processor, weights, device)
            precise = precision or loaded.precision
            loaded = replace(loaded, compile=compile or loaded.compile, precision=precise)
            self._settings.check_model(loaded)
            self._explainer = RowExplainer(self._settings, loaded=loaded)
        elif processor is not None:
            raise WhenceError("processor= is for a model object; a model by name brings its own.")
        elif model is not None or kind is not None:
            self._explainer = RowExplainer(self._settings)

    def __call__(self, batch: Any) -> Any:
        """Explain a batch in any of Ray's formats; return its rows as a `pyarrow.Table`."""
        from ray.data.block import BlockAccessor

        table = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        if not table.num_rows:
            form = self._explainer.description.form if self._explainer else RowForm()
            return make_table([], form)
        example = {name: _find_value(table.column(name)) for name in table.column_names}
        id_column = _find_id(example, self._id)
        kind = self._explainer.loaded.kind if self._explainer else self._kind
        asked = self._column
        if asked is None and example.get(self._found, "") is None:
            asked = self._found  # this batch holds nothing by which the column could be found
        self._found, kind = _find_content(example, asked, kind, id_column)
        items = make_items(table, id_column, [self._found], kind)
        return self._add_kept(self._load(kind).explain(items), table)

    def _load(self, kind: Kind) -> RowExplainer:
        """Load the embedded model for a kind of inputs, unless a model is loaded."""
        if self._explainer is None:
            self._explainer = RowExplainer(replace(self._settings, kind=kind))
        return self._explainer

    def _add_kept(self, rows: Any, table: Any) -> Any:
        for name in self._keep:
            if name not in table.column_names:
                known = ", ".join(table.column_names)
                raise WhenceError(f"keep: there is no column '{name}'. The columns are {known}.")
            if name in rows.column_names:
                raise WhenceError(f"keep: rows of explanations have a column '{name}' already.")
            rows = rows.append_column(table.schema.field(name), table.column(name))
        return rows


def _find_value(column: Any) -> Any:
    """Find the first value of a column of Arrow that is there; None if there is none."""
    values = (value.as_py() for value in column)
    return next((value for value in values if value is not None), None)


def _find_id(example: Mapping[str, Any], asked: str | None) -> str:
    if asked is None and not {"id", "__key__"} & set(example):
        asked = next((name for name in _PATHS if name in example), None)
    return find_id_column(example, asked)


def _find_content(
    example: Mapping[str, Any], asked: str | None, kind: Kind | None, id_column: str
) -> tuple[str, Kind]:
    """Find the column of photos or texts; where there is no other, photos are read by paths."""
    try:
        return find_content_column(example, asked, kind, id_column)
    except WhenceError:
        if asked is None and id_column in _PATHS and kind != "text":
            return find_content_column(example, id_column, "image", id_column)
        raise


def _name_targets(
    target: AnyTarget | None, classes: SeveralTargets | None
) -> tuple[tuple[str, ...], int | None]:
    """Describe targets for the fingerprint, and say how many of the most probable there are."""
    if target is not None and classes is not None:
        raise WhenceError("Give either target= or classes=, not both.")
    if isinstance(classes, SupportsIndex):
        return (), operator.index(classes)
    listed: list[object] = [] if target is None else [target]
    return tuple(map(_describe, listed if classes is None else list(classes))), None


def _describe(target: object) -> str:
    """A target in words that are the same in each process."""
    if isinstance(target, str | int):
        return str(target)
    return str(getattr(target, "__qualname__", None) or repr(target))
