"""Print the models that methods were tried on: counts by task, or one family."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.table import Table

from whence._util.text import to_printable

if TYPE_CHECKING:
    from rich.console import Console

    from whence.models.tried import TriedModel

_SHOWN = ("whence", "tiba", "gae", "rollout", "attnlrp", "input_x_gradient")


def print_tasks(console: Console) -> None:
    """Print for each task on how many of the models that were tried some methods run."""
    from whence.models.tried import read_tried_models

    tried = read_tried_models()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    shown = [method for method in _SHOWN if method in tried.methods]
    table.add_column("small models tried", footer="all")
    for heading in ("models", *shown):
        count = len(tried.models) if heading == "models" else tried.count_running(heading)
        table.add_column(heading, justify="right", footer=str(count))
    for task, models in tried.group_by_task().items():
        counts = [str(tried.count_running(method, models)) for method in shown]
        table.add_row(task, str(len(models)), *counts)
    console.print(table)
    libraries = Counter(one.library for one in tried.models)
    listed = ", ".join(f"{count} of {library}" for library, count in libraries.items())
    families = len({one.family for one in tried.models})
    console.print(f"Models of {families} families ({listed}), in small random configurations.\n")


def print_family(name: str, as_json: bool) -> None:
    """Print what was found for the models of a family."""
    from whence.models.tried import read_tried_models

    tried = read_tried_models()
    models = tried.find_family(name)
    if as_json:
        facts = [dataclasses.asdict(one) for one in models]
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    lines = [line for one in models for line in _describe(one)]
    releases = ", ".join(f"{library} {release}" for library, release in tried.releases.items())
    lines += ["", f"Tried in small random configurations, with {releases}."]
    lines.append("`whence models FOLDER` tries methods on a model of your own.")
    typer.echo("\n".join(map(to_printable, lines)))


def _describe(model: TriedModel) -> list[str]:
    particular = f" ({model.variant})" if model.variant else ""
    scored = f", scores of {model.of}" if model.of else ""
    lines = [f"{model.library}:{model.model}{particular}: {model.task}{scored}"]
    lines += wrap("methods", ", ".join(model.methods) or "none")
    if model.checked:
        lines += wrap("checked", f"against {model.checked}")
    for problem, names in model.refused.items():
        lines += wrap("not", f"{', '.join(names)}: {problem.removesuffix('.')}")
    return lines


def wrap(title: str, fact: str) -> list[str]:
    """Write a fact under a title, in lines of at most 100 letters."""
    return textwrap.wrap(
        fact,
        100,
        initial_indent=f"  {title:<11}",
        subsequent_indent=" " * 13,
        break_on_hyphens=False,
        break_long_words=False,
    )
