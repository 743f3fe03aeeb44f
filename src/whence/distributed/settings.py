"""The settings of a run over many inputs, and the fingerprint of what its results depend on."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from whence._util.files import exists
from whence._util.fingerprint import hash_weights
from whence.distributed.rows import RowForm, ScoreType, list_facts
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.methods.registry import MethodSpecification
from whence.models import LoadedModel
from whence.pipeline import BatchExplainer, ExplainSettings
from whence.pipeline.reading import Readable
from whence.version import __version__

_MAX_THREADS = 4
# How many inputs are tried before a model, a method or a target is refused.
_TRIED_INPUTS = 20
_TRIED_READS = 100
_PROBES = ((96, 64), (64, 131))  # width and height of pictures
_PROBE_TEXT = "A wonderful film, and far too short."
# What a model's configuration holds beside what it computes.
_IDLE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")


@dataclass(frozen=True)
class RunSettings:
    """How many inputs are explained, and how their rows are written. Plain data.

    Attributes:
        explain: Model, targets and the one method.
        kind: The kind of inputs, where no model is named.
        column: Of tables, the column that holds photos or texts; found if left out.
        id: Of tables, the column that holds ids; found if left out.
        scores: The type of stored scores.
        part_rows: How many rows a part of the results holds.
        threads: How many photos are prepared at once; the CPUs of the process, up to 4, if left
            out.
    """

    explain: ExplainSettings
    kind: Kind | None = None
    column: str | None = None
    id: str | None = None
    scores: ScoreType = "float32"
    part_rows: int = 512
    threads: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON holds them; local paths are absolute."""
        saved: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        for name in ("model", "weights"):
            path = saved["explain"][name]
            if path is not None and exists(Path(path)):
                saved["explain"][name] = os.path.abspath(path)
        return saved

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> RunSettings:
        """Read what `to_json` gave."""
        how = dict(saved["explain"])
        how["methods"] = tuple(MethodSpecification(**one) for one in how["methods"])
        how["targets"] = tuple(how["targets"])
        how["texts"] = None if how.get("texts") is None else tuple(how["texts"])
        how["weights"] = None if how["weights"] is None else Path(how["weights"])
        return cls(**{**saved, "explain": ExplainSettings(**how)})

    @property
    def method(self) -> MethodSpecification:
        """The one method."""
        (method,) = self.explain.methods
        return method

    def count_threads(self) -> int:
        """Count the threads that prepare photos."""
        if self.threads is not None:
            return self.threads
        available = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
        return min(_MAX_THREADS, len(available(0)))

    def check(self) -> None:
        """Refuse wrong settings before a model is loaded."""
        self.explain.check()
        if len(self.explain.methods) != 1:
            raise WhenceError("A run over many inputs takes one method.")
        if self.scores not in ("float32", "float16"):
            raise WhenceError(f"Scores are float32 or float16, not '{self.scores}'.")
        if self.part_rows < 1 or self.count_threads() < 1:
            raise WhenceError("The rows of a part and the threads are numbers from 1.")

    def load_model(self) -> LoadedModel:
        """Load the model, and refuse a method or targets that it does not have."""
        how = self.explain
        named = how.model is not None or how.weights is not None
        loaded = how.load(None if named else self.kind, scores_words=False)
        self.check_model(loaded)
        return loaded

    def check_model(self, loaded: LoadedModel) -> None:
        """Refuse a model that lacks the targets, or whose inputs the method does not explain."""
        loaded.check_is_photo_or_text("A run over many inputs")
        loaded.check_classes(**self.explain.target_arguments())
        kinds = self.method.description.inputs
        if loaded.kind not in kinds:
            raise WhenceError(f"Method '{self.method.name}' explains {' and '.join(kinds)}s only.")


@dataclass(frozen=True)
class RunDescription:
    """What the rows of a run share. Plain data, which run.json and the workers get.

    Attributes:
        fingerprint: SHA-256 of `depends_on`.
        depends_on: What results depend on, by name: weights, method, targets, version, ….
        kind: The kind of the model's inputs.
        form: Of the rows.
        facts: Of all explanations: method, settings, model, …; see `rows.list_facts`.
    """

    fingerprint: str
    depends_on: dict[str, Any]
    kind: Kind
    form: RowForm
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The description as JSON holds it."""
        saved: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return saved

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> RunDescription:
        """Read what `to_json` gave."""
        return cls(**{**saved, "form": RowForm(**saved["form"])})


def describe_run(
    settings: RunSettings, loaded: LoadedModel, inputs: Iterable[Readable] = ()
) -> RunDescription:
    """Describe a run, and prove that its settings work.

    Args:
        settings: Of the run.
        loaded: The model.
        inputs: The first of the inputs. They are tried until one is explained; without any, a
            picture of noise or a sentence is.

    Raises:
        WhenceError: None of the inputs can be explained.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the run itself gives them again
        facts, units = _try_inputs(settings, loaded, inputs) or _try_probe(settings, loaded)
    how = settings.explain
    targets = how.top or max(1, len(how.targets))
    is_fixed = loaded.kind == "image" and _has_fixed_size(loaded)
    form = RowForm(settings.scores, targets, units if is_fixed else None)
    depends_on = _list_dependencies(settings, loaded)
    content = json.dumps(depends_on, sort_keys=True, ensure_ascii=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return RunDescription(fingerprint, depends_on, loaded.kind, form, facts)


def _try_inputs(
    settings: RunSettings, loaded: LoadedModel, inputs: Iterable[Readable]
) -> tuple[dict[str, Any], int] | None:
    """Explain one of the inputs; None if there are none."""
    explainer = BatchExplainer(settings.explain, loaded)
    unreadable: list[str] = []
    unfit: list[WhenceError] = []
    for one in inputs:
        try:
            (found,) = explainer.explain([one])
        except WhenceError as error:
            unfit.append(error)
            if len(unfit) >= _TRIED_INPUTS:
                break
            continue
        if found.error is None:
            (explanation,) = found.explanations.values()
            return list_facts(explanation), explanation.scores.shape[-1]
        name = getattr(one, "id", "")  # a probe has none
        unreadable.append(f"The first, '{name}': {found.error}" if name else found.error)
        if len(unreadable) >= _TRIED_READS:
            break
    if unfit:
        raise unfit[0]
    if unreadable:
        count = f"the first {len(unreadable)} inputs" if len(unreadable) > 1 else "the inputs"
        raise WhenceError(f"None of {count} can be read. {unreadable[0]}")
    return None


def _try_probe(settings: RunSettings, loaded: LoadedModel) -> tuple[dict[str, Any], int | None]:
    """Explain a picture of noise, or a sentence; a model that refuses it tells nothing."""
    try:
        found = _try_inputs(settings, loaded, [_Probe(loaded.kind, _PROBES[0])])
    except WhenceError:
        found = None
    return found or ({"model": loaded.title, "method": settings.method.label}, None)


@dataclass(frozen=True)
class _Probe:
    """An input that is always there."""

    kind: Kind
    size: tuple[int, int]

    def read(self) -> Image.Image | str:
        """Draw a picture of noise, the same each time; or return a sentence."""
        if self.kind == "text":
            return _PROBE_TEXT
        width, height = self.size
        generator = torch.Generator().manual_seed(0)
        noise = torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8)
        return Image.fromarray(noise.numpy())


def _has_fixed_size(loaded: LoadedModel) -> bool:
    """Whether photos of different sizes are prepared to one size."""
    try:
        batches = [loaded.prepare([_Probe("image", size).read()]).inputs for size in _PROBES]
    except Exception:  # a processor of the user's may raise anything
        return False
    shapes = {tuple(one.shape) if isinstance(one, torch.Tensor) else None for one in batches}
    return len(shapes) == 1 and None not in shapes


def _list_dependencies(settings: RunSettings, loaded: LoadedModel) -> dict[str, Any]:
    """List what results depend on, by names that a user knows."""
    how, method = settings.explain, settings.method
    describe: Callable[[], dict[str, Any]] = getattr(
        getattr(loaded.model, "config", None), "to_dict", dict
    )
    known = {name: value for name, value in describe().items() if name not in _IDLE}
    found = {
        "model weights": hash_weights(loaded.model),
        "model configuration": _hash_json([type(loaded.model).__name__, known]),
        "preprocessing": _hash_json(_describe_preprocessing(loaded)),
        "class names": _hash_json(sorted(loaded.class_names.items())),
        "method": method.name,
        "method options": method.options,
        "rules": method.rules,
        "targets": list(how.targets),
        "top": how.top,
        "against": how.against,
        "of": how.of,
        "position": how.position,
        **({} if how.box is None else {"box": how.box}),
        **({} if how.pixel is None else {"pixel": how.pixel}),
        "precision": how.precision,
        "verify": how.verify,
        "scores": settings.scores,
        "whence": __version__,
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def _describe_preprocessing(loaded: LoadedModel) -> list[Any]:
    prepare: Any = loaded.preprocessor
    tokenizer = loaded.tokenizer
    known: list[Any] = [type(prepare).__name__]
    processor: Any = getattr(prepare, "processor", None)
    if hasattr(processor, "to_dict"):
        known.append(processor.to_dict())
    elif is_dataclass(prepare) and not isinstance(prepare, type):
        known.append(asdict(prepare))
    if tokenizer is not None:
        known += [type(tokenizer).__name__, getattr(prepare, "max_length", None)]
        known.append(sorted(tokenizer.get_vocab().items()))
    return known


def _hash_json(what: Any) -> str:
    """SHA-256 of data as JSON; objects count by their type only."""
    content = json.dumps(what, sort_keys=True, default=lambda one: type(one).__name__)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
