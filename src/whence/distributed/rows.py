"""Rows of results: their columns in Parquet, one row for each input, from and to explanations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whence._util.extras import import_extra
from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.explanation import Explanation, Photo
from whence.explanation.parts import Check
from whence.layout import Tokens

ScoreType = Literal["float32", "float16"]
Row = dict[str, Any]

# How much float16 may change a score, as a share of the largest, before a note says so.
_COARSE = 0.01


@dataclass(frozen=True)
class RowForm:
    """What decides on the types of columns; the same for all rows of a run.

    Attributes:
        scores: The type of scores.
        targets: The number of explained targets of each input. With more than one, `target`, `name`
            and `probability` are lists of so many, and `scores` has those of all, one after the
            other.
        units: The number of scores for each target, where all inputs have the same.
    """

    scores: ScoreType = "float32"
    targets: int = 1
    units: int | None = None

    @property
    def width(self) -> int | None:
        """The number of scores in each row, where all rows have the same."""
        return None if self.units is None else self.targets * self.units


def import_arrow(module: str = "pyarrow") -> Any:
    """Import pyarrow, or a module of it; a `WhenceError` says how to install it."""
    return import_extra(module, "pyarrow", "parquet")


def make_schema(form: RowForm) -> Any:
    """Make the schema of a part of the results, a `pyarrow.Schema`."""
    pa = import_arrow()

    def repeat(kind: Any) -> Any:
        return kind if form.targets == 1 else pa.list_(kind, form.targets)

    number = pa.float16() if form.scores == "float16" else pa.float32()
    check = {"name": pa.string(), "figure": pa.float64()}
    check |= {"status": pa.string(), "sentence": pa.string()}
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            ("target", repeat(pa.int64())),
            ("name", repeat(pa.string())),
            ("probability", repeat(pa.float64())),
            ("scores", pa.list_(number, -1 if form.width is None else form.width)),
            ("grid", pa.list_(pa.int32())),
            ("tokens", pa.list_(pa.string())),
            ("words", pa.list_(pa.int32())),
            ("checks", pa.list_(pa.struct(list(check.items())))),
            ("notes", pa.list_(pa.string())),
            pa.field("error", pa.string(), nullable=False),
            pa.field("fingerprint", pa.string(), nullable=False),
        ]
    )


def make_table(rows: Sequence[Row], form: RowForm) -> Any:
    """Make a `pyarrow.Table` of rows, in their order."""
    pa = import_arrow()
    schema = make_schema(form)
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


class RowMaker:
    """Make rows of a batch's explanation, which goes to the CPU once.

    Args:
        explanation: Of the batch.
        mask: (batch, tokens), 0 where a token is padding; None if there is none.
        form: Of the rows of this run.
        fingerprint: Of model, method and version.
    """

    def __init__(
        self, explanation: Explanation, mask: Tensor | None, form: RowForm, fingerprint: str
    ) -> None:
        names = ("scores", "target", "logits", "values", "probabilities")
        tensors = {name: getattr(explanation, name) for name in names}
        here = {name: x.detach().cpu() for name, x in tensors.items() if x is not None}
        self._explanation = replace(explanation, photos=None, evidence=None, **here)
        self._mask = None if mask is None or explanation.tokens is None else mask.cpu().bool()
        self._form = form
        self._fingerprint = fingerprint
        self._checks = [asdict(check) for check in explanation.checks]
        self._notes = explanation.notes

    def make(self, sample: int, name: str, notes: Sequence[str]) -> Row:
        """Make the row of one of the batch's inputs.

        Args:
            sample: Which one.
            name: Its id.
            notes: What its owner should know of how it was prepared.

        Raises:
            WhenceError: The scores are not finite, or do not fit the form.
        """
        form, tokens = self._form, self._explanation.tokens
        classes = self._explanation.classes(sample)
        real = None if self._mask is None else self._mask[sample].tolist()
        parts = [one.scores if real is None else one.scores[real] for one in classes]
        scores = np.concatenate(parts)
        if len(classes) != form.targets or form.width not in (None, len(scores)):
            raise WhenceError(
                f"It has {len(scores)} scores of {len(classes)} targets, and other inputs "
                f"{form.width} of {form.targets}."
            )
        if tokens is not None:
            keep = [True] * len(tokens.strings[sample]) if real is None else real
            tokens = tokens.select_tokens(sample, keep)
        return {
            "id": name,
            "target": self._fit([one.index for one in classes]),
            "name": self._fit([one.name for one in classes]),
            "probability": self._fit([one.probability for one in classes]),
            "scores": _round_scores(scores, form.scores),
            "grid": list(self._explanation.grid or ()),
            "tokens": [] if tokens is None else tokens.strings[0],
            "words": [] if tokens is None else tokens.words[0],
            "checks": self._checks,
            "notes": [*notes, *self._notes, *_note_rounding(scores, form.scores)],
            "error": "",
            "fingerprint": self._fingerprint,
        }

    def _fit(self, values: list[Any]) -> Any:
        """A list for several targets, and otherwise its only value."""
        return values if self._form.targets > 1 else values[0]


def make_error_row(name: str, error: str, form: RowForm, fingerprint: str) -> Row:
    """Make the row of an input that could not be explained.

    Lists of a fixed size hold NaN or nulls: most releases of pyarrow cannot read such a list from
    Parquet if it is null itself.
    """
    nothing = None if form.targets == 1 else [None] * form.targets
    empty: Row = dict.fromkeys(("target", "name", "probability"), nothing)
    lists: Row = {column: [] for column in ("grid", "tokens", "words", "checks", "notes")}
    scores = [math.nan] * (form.width or 0)
    told = {"error": error or "It failed.", "fingerprint": fingerprint}
    return {"id": name, **empty, "scores": scores, **lists, **told}


def read_row(row: Mapping[str, Any], facts: Mapping[str, Any], photo: Photo | None) -> Explanation:
    """Make the explanation of a row again; logits and details are not stored.

    Args:
        row: The row, as Python objects.
        facts: What all rows of the run share; see `RunDescription`.
        photo: The photo and what the model saw of it, where it was read again.

    Raises:
        WhenceError: The row tells of an error, or is damaged.
    """
    if row["error"]:
        raise WhenceError(f"'{row['id']}' was not explained: {row['error']}")
    try:
        many = isinstance(row["target"], list)
        target = torch.tensor([row["target"]])
        chances = row["probability"] if many else [row["probability"]]
        known = torch.tensor([math.nan if one is None else one for one in chances]).double()
        scores = torch.tensor(np.asarray(row["scores"], np.float32))
        scores = scores.reshape(1, len(row["target"]), -1) if many else scores.reshape(1, -1)
        grid = tuple(row["grid"]) or None
        size = facts.get("image_size")
        words = [row["words"]] if row["tokens"] else []
        return Explanation(
            scores,
            target,
            torch.empty(1, 0),
            grid=grid,
            image_size=None if size is None or grid is None else (size[0], size[1]),
            tokens=Tokens([row["tokens"]], words) if row["tokens"] else None,
            target_names=[row["name"]],
            multi_label=bool(facts.get("multi_label")),
            method=str(facts.get("method", "")),
            class_specific=bool(facts.get("class_specific", True)),
            settings=dict(facts.get("settings", {})),
            version=str(facts.get("version", "")),
            checks=[Check(**check) for check in row["checks"]],
            probabilities=known.reshape(target.shape),
            model=str(facts.get("model", "")),
            model_knows=str(facts.get("model_knows", "")),
            photos=None if photo is None else [photo],
        )
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise WhenceError(f"The row of '{row.get('id')}' is damaged: {error}.") from error


def list_facts(explanation: Explanation) -> dict[str, Any]:
    """List what all explanations of a run share, for `read_row`."""
    names = ("method", "class_specific", "settings", "version", "multi_label")
    facts = {name: getattr(explanation, name) for name in (*names, "model", "model_knows")}
    return {**facts, "image_size": explanation.image_size}


def _round_scores(scores: NDArray[np.float64], kind: ScoreType) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # it is told as an error of the row
        rounded = scores.astype(np.float16 if kind == "float16" else np.float32)
    if not np.isfinite(rounded).all():
        raise WhenceError(f"Its scores are too large for {kind}.")
    return rounded


def _note_rounding(scores: NDArray[np.float64], kind: ScoreType) -> list[str]:
    """Note scores of which float16 keeps little."""
    if kind == "float32" or not scores.size:
        return []
    change = np.abs(_round_scores(scores, kind) - scores).max()
    largest = float(np.abs(scores).max())
    if change <= _COARSE * largest:
        return []
    return [to_printable(f"float16 changes scores by up to {change / largest:.0%} of the largest")]
