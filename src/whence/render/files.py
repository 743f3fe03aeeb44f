"""Save an explanation in the form that the ending of a file's name says."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whence._util.files import FIGURES, check_ending, write_atomically
from whence._util.saved import SUFFIX
from whence.explanation import Generation, PairExplanation
from whence.explanation.table import list_unit_records
from whence.layout.grouping import Grouping
from whence.render.animation import encode_gif
from whence.render.compared import list_text_words, list_texts
from whence.render.figure import draw_figure
from whence.render.pages import format_page

if TYPE_CHECKING:
    from whence.explanation import Explanation

_TEXTS: dict[str, Callable[[Explanation, Grouping], str]] = {
    ".html": lambda explanation, by: format_page(explanation, by=by),
    ".json": lambda explanation, by: format_json(explanation, by),
    ".csv": lambda explanation, by: format_csv(explanation, by),
}
SUFFIXES = (*FIGURES, ".gif", *_TEXTS, ".npz", SUFFIX)


def save(explanation: Explanation, path: str | Path, by: Grouping = "word") -> None:
    """Write a figure, a page or data; whole or not at all. `Explanation.save` writes all itself.

    A figure shows the first sample; all else has every sample.

    Args:
        explanation: Of anything.
        path: Where to write; its ending is one of `SUFFIXES`.
        by: Of texts, as for `Explanation.matrix`.

    Raises:
        WhenceError: The ending is another, or the place cannot be written.
    """
    path, ending = Path(path), check_ending(path, SUFFIXES)
    if ending in FIGURES:
        draw_figure(explanation, by=by).save(path)
    elif ending == ".gif":
        write_atomically(path, encode_gif(explanation))
    elif ending in _TEXTS:
        write_atomically(path, _TEXTS[ending](explanation, by).encode())
    elif ending == ".npz":
        write_atomically(path, format_npz(explanation))
    else:
        explanation.save(path)


def format_json(explanation: Explanation, by: Grouping = "word") -> str:
    """All that a program needs as JSON: how it was made, what was checked, and the scores.

    Scores are, for each sample, (classes, rows, columns) of a photo, or (classes, words).
    """
    content: dict[str, object] = {
        "format": "whence scores 1",
        "version": explanation.version,
        "method": explanation.method,
        "model": explanation.model,
        "model_knows": explanation.model_knows,
        "settings": explanation.settings,
        "class_specific": explanation.class_specific,
        "multi_label": explanation.multi_label,
        "checks": [asdict(check) for check in explanation.checks],
        "notes": explanation.notes,
        "samples": [_describe_sample(explanation, n, by) for n in range(len(explanation))],
    }
    return json.dumps(content, ensure_ascii=False, indent=1, default=str) + "\n"


def format_csv(explanation: Explanation, by: Grouping = "word") -> str:
    """All samples as a table, one line for each score."""
    lines = [
        {"sample": sample, **record}
        for sample in range(len(explanation))
        for record in _list_records(explanation, sample, by)
    ]
    stream = io.StringIO(newline="")
    if lines:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return stream.getvalue()


def format_npz(explanation: Explanation) -> bytes:
    """The arrays of an explanation in a file that numpy reads without any other library.

    Beside the tensors of the explanation by their names there are `names` of the targets, `tokens`
    of texts, `box` of photos (what the model saw: left, top, right, bottom) in pixels of `size`
    (width, height), and `method`, `model`, `version` and `checks` (as JSON).
    """
    tensors = {
        name: one
        for name, one in explanation._to_parts()[1].items()
        if not name.startswith(("photo.", "media."))
    }
    arrays: dict[str, NDArray[np.generic]] = {n: _to_array(one) for n, one in tensors.items()}
    for name in ("grid", "axes", "image_size", "length"):
        if (value := getattr(explanation, name)) not in (None, ()):
            arrays[name] = np.array(value)
    names = [[one.name for one in explanation.classes(n)] for n in range(len(explanation))]
    arrays["names"] = _pad_rows(names).reshape(explanation.target.shape)
    if explanation.tokens is not None:
        arrays["tokens"] = _pad_rows(explanation.tokens.strings)
    if explanation.photos:
        arrays["box"] = np.array([photo.box for photo in explanation.photos])
        arrays["size"] = np.array([photo.image.size for photo in explanation.photos])
    for name in ("method", "model", "version"):
        arrays[name] = np.array(getattr(explanation, name))
    arrays["checks"] = np.array(json.dumps([asdict(check) for check in explanation.checks]))
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def _describe_sample(explanation: Explanation, sample: int, by: Grouping) -> dict[str, object]:
    """One sample for JSON."""
    facts: dict[str, object] = {}
    if isinstance(explanation, Generation):
        if explanation.tokens is not None:
            facts = {"prompt": explanation.prompt(sample), "output": explanation.output(sample)}
    else:
        facts = {
            "sentence": explanation.describe(sample),
            "target": explanation.target[sample].reshape(-1).tolist(),
            "logits": _to_finite(explanation.logits[sample].reshape(-1).tolist()),
        }
        if explanation.values is not None:
            values = explanation.values[sample].reshape(-1).tolist()
            facts["values"] = _to_finite(values)
    if isinstance(explanation, PairExplanation):
        facts["texts"] = list_texts(explanation, sample)
        facts["words"] = list_text_words(explanation, sample)
    if explanation.grid is None:
        matrix = explanation.matrix(sample, by)
        return facts | {
            "rows": matrix.rows,
            "probabilities": matrix.probabilities,
            "columns": matrix.columns,
            "scores": matrix.values.tolist(),
        }
    classes = explanation.classes(sample)
    facts |= {
        "rows": [one.name for one in classes],
        "probabilities": [one.probability for one in classes],
        "grid": explanation.grid,
        "axes": explanation.axes,
        "image_size": explanation.image_size,
        "length": explanation.length,
        "scores": [one.scores.reshape(explanation.grid).tolist() for one in classes],
    }
    if explanation.areas:
        facts["areas"] = [None if one.area is None else asdict(one.area) for one in classes]
    if explanation.photos:
        photo = explanation.photos[sample]
        facts["photo"] = {"size": photo.image.size, "box": photo.box}
    return facts


def _list_records(explanation: Explanation, sample: int, by: Grouping) -> list[dict[str, object]]:
    if explanation.grid is not None:
        return list_unit_records(explanation, sample)
    return explanation.matrix(sample, by).to_records()


def _to_array(tensor: Tensor) -> NDArray[np.generic]:
    tensor = tensor.detach().cpu()
    # numpy does not know half precisions of all kinds.
    narrow = tensor.is_floating_point() and tensor.element_size() < 4
    return np.asarray((tensor.float() if narrow else tensor).numpy())


def _pad_rows(rows: list[list[str]]) -> NDArray[np.str_]:
    """Rows of strings as an array; shorter ones end in empty strings."""
    longest = max(map(len, rows), default=0)
    return np.array([row + [""] * (longest - len(row)) for row in rows], dtype=np.str_)


def _to_finite(values: list[float]) -> list[float | None]:
    """Numbers as JSON knows them: infinite ones and NaN are null."""
    return [value if math.isfinite(value) else None for value in values]
