"""Save an explanation in a form for readers or other programs, by the suffix of a file's name."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from whence._util.files import write_atomically
from whence.errors import WhenceError
from whence.explanation import Generation
from whence.layout.grouping import Grouping
from whence.render.generation import format_generation_page
from whence.render.matrix import draw_matrix
from whence.render.text import format_text_page

if TYPE_CHECKING:
    from whence.explanation import Explanation

SUFFIXES = (".html", ".png", ".svg", ".json", ".csv")


def save(explanation: Explanation, path: str | Path, by: Grouping = "word") -> None:
    """Write a page (.html), a figure (.png, .svg) or data (.json, .csv); whole or not at all.

    A figure shows the first sample; page and data have all.

    Args:
        explanation: Of texts.
        path: Where to write.
        by: As for `Explanation.matrix`.

    Raises:
        WhenceError: The explanation is not of texts, or the place cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if explanation.grid is not None:
        raise WhenceError(
            f"'{path.name}' can hold an explanation of texts only. A figure of a photo needs the "
            f"photo: whence.render.draw_figure(photo, explanation). All of it goes into a file "
            f"that ends in .safetensors."
        )
    if suffix == ".html":
        content = _format_page(explanation, by)
    elif suffix == ".json":
        content = format_json(explanation, by)
    elif suffix == ".csv":
        content = format_csv(explanation, by)
    else:
        draw_matrix(explanation.matrix(0, by)).save(path)
        return
    write_atomically(path, content.encode())


def format_json(explanation: Explanation, by: Grouping = "word") -> str:
    """All samples as JSON: names of rows and columns, probabilities and scores."""
    samples = []
    for sample in range(len(explanation)):
        matrix = explanation.matrix(sample, by)
        facts: dict[str, object] = {}
        if isinstance(explanation, Generation) and explanation.tokens is not None:
            facts = {"prompt": explanation.prompt(sample), "output": explanation.output(sample)}
        facts |= {
            "rows": matrix.rows,
            "probabilities": matrix.probabilities,
            "columns": matrix.columns,
            "scores": matrix.values.tolist(),
        }
        samples.append(facts)
    content = {"format": "whence scores 1", "about": dict(explanation.provenance)}
    return json.dumps({**content, "samples": samples}, ensure_ascii=False, indent=1) + "\n"


def format_csv(explanation: Explanation, by: Grouping = "word") -> str:
    """All samples as a table, one line for each score."""
    lines = [
        {"sample": sample, **record}
        for sample in range(len(explanation))
        for record in explanation.matrix(sample, by).to_records()
    ]
    stream = io.StringIO(newline="")
    if lines:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return stream.getvalue()


def _format_page(explanation: Explanation, by: Grouping) -> str:
    if isinstance(explanation, Generation):
        return format_generation_page(explanation, by=by)
    return format_text_page(explanation)
