"""Render the page of a benchmark run: table, chart, examples and settings in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from whence.benchmark.columns import Columns
from whence.benchmark.formats import MISSING, format_row
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.protocols.base import AnyProtocol
from whence.benchmark.table import BenchmarkTable
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.models import LoadedModel
from whence.render import format_text_html, overlay
from whence.render.drawing import encode_png
from whence.render.templates import render_template

if TYPE_CHECKING:
    from whence.datasets import Sample

_EXAMPLES = 3
_METHODS = {"image": 6, "text": 2}
_PICTURE_SIDE = 320
_EVIDENCE_LENGTH = 400


@dataclass
class ExampleView:
    """A sample on the page: the best or the worst of a method, by the figure `value`.

    `marked` are words that people marked, or that an answer follows from; `pictures` and `texts`
    captions with PNG files or coloured words; and `error` says why it cannot be shown.
    """

    name: str
    value: str
    kind: str
    marked: str = ""
    pictures: list[dict[str, str | bytes]] = field(default_factory=list)
    texts: list[dict[str, str]] = field(default_factory=list)
    error: str = ""


def choose_examples(
    protocol: AnyProtocol, table: BenchmarkTable, results: Mapping[str, Columns]
) -> tuple[str, list[ExampleView]]:
    """Choose the samples on which the best method does best and worst; also return that method."""
    main, column = protocol.find_main()
    metric = next((m for m in table.metrics if m.name == main), None)
    method = table.find_best(main) if metric else None
    if metric is None or method is None or column not in results[method]:
        return (method or table.methods[0]), []
    columns = results[method]
    values = columns[column]
    order = [int(at) for at in np.argsort(values, kind="stable") if np.isfinite(values[at])]
    if metric.better == "higher":
        order.reverse()
    count = min(_EXAMPLES, len(order) // 2)
    chosen = [(at, "best") for at in order[:count]]
    chosen += [(at, "worst") for at in reversed(order[len(order) - count :])]
    names = columns["sample"]
    return method, [ExampleView(str(names[at]), f"{values[at]:.4g}", kind) for at, kind in chosen]


def render_page(
    job: BenchmarkJob,
    table: BenchmarkTable,
    results: Mapping[str, Columns],
    chart: bytes | None,
    overview: Mapping[str, object] | None = None,
) -> str:
    """Render the page, with the chart as PNG; the run's model explains the examples again.

    `overview` is what `whence.benchmark.overview.writing.describe_overview` tells of it.
    """
    best, examples = choose_examples(job.protocol, table, results)
    loaded = job.loaded.to_eager()  # compiling does not pay for a few examples
    methods = sorted(job.methods, key=lambda method: method.label != best)[: _METHODS[loaded.kind]]
    for example in examples:
        try:
            _explain_example(example, job.protocol, loaded, job.dataset.read(example.name), methods)
        except WhenceError as error:  # the results are there all the same
            example.error = str(error)
    settings = json.dumps(
        {"settings": job.store.settings, **job.describe()}, ensure_ascii=False, indent=2
    )
    return render_template(
        "benchmark/templates/report.html.j2",
        title=table.title,
        theme="auto",
        metrics=table.metrics,
        rows=[
            {"method": method, "cells": format_row(table, method, table.metrics)}
            for method in table.methods
        ],
        missing=MISSING,
        notes=table.notes,
        chart=chart,
        overview=overview,
        best=best,
        ranked_by=job.protocol.find_main()[1].replace("_", " "),
        examples=examples,
        settings=settings.encode("utf-8", "replace").decode(),
    )


def _explain_example(
    example: ExampleView,
    protocol: AnyProtocol,
    loaded: LoadedModel,
    sample: Sample,
    methods: Sequence[MethodSpecification],
) -> None:
    """Add the pictures or texts of a sample by each method."""
    for method in methods:
        shown, explanation = protocol.explain_example(loaded, sample, method)
        names = explanation.target_names
        caption = f"{method.label}: {names[0] if names else int(explanation.target[0])}"
        if isinstance(shown, str):
            html = Markup(format_text_html(explanation))  # escaped by its own template
            example.texts.append({"caption": caption, "html": html})
            continue
        small = shown.copy()
        small.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
        if not example.pictures:
            example.pictures.append({"caption": "photo", "png": encode_png(small.convert("RGB"))})
        grid = explanation.scores[0].reshape(explanation.picture_grid or (1, -1))
        example.pictures.append({"caption": caption, "png": encode_png(overlay(small, grid))})
    evidence = [" ".join(sample.words[start:end]) for start, end in sample.evidence]
    evidence += [str(sample.content)[start:end] for start, end in sample.cues]
    if evidence:
        marked = " … ".join(evidence)
        if len(marked) > _EVIDENCE_LENGTH:
            marked = marked[: _EVIDENCE_LENGTH - 1] + "…"
        example.marked = marked
