"""The report's page: one file that loads nothing else, and a script that sorts and filters it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from whence._util.notes import find_repeated, merge_notes
from whence._util.text import to_printable
from whence.metrics.statistics import bootstrap_mean
from whence.render.overlay import is_signed, prepare_map
from whence.render.photo import render_map_legend
from whence.render.templates import read_asset, render_template
from whence.report.entry import Entry, EntryResult, group_scores

# A longer text, as HTML, gets a box that scrolls.
_LONG = 700
# More pictures than this do not fit side by side on a phone.
_NARROW = 2


@dataclass(frozen=True)
class MethodSummary:
    """The faithfulness of one method on all inputs of a kind."""

    method: str  # its label
    inputs: int  # how many have a score
    mean: float
    low: float  # the lower end of the mean's 95 % interval
    high: float  # the upper end
    median: float
    wins: int  # on how many inputs no method has a higher score


@dataclass(frozen=True)
class RunOverview:
    """What became of all inputs of a run, of which the page shows some.

    Attributes:
        explained: How many were explained.
        failed: How many were not.
        shown: How many of the explained are on the page.
        listed: How many of the failed are.
        is_finished: Whether each input of the run has its row.
        has_model: Whether the model could be loaded.
        classes: Name, number of inputs and mean probability of the most frequent classes.
        more_classes: How many classes are left out.
        errors: The most frequent errors with the number of inputs.
        more_errors: How many are left out.
    """

    explained: int
    failed: int
    shown: int
    listed: int
    is_finished: bool
    has_model: bool
    classes: list[tuple[str, int, float | None]]
    more_classes: int
    errors: list[tuple[str, int]]
    more_errors: int


def render_page(
    title: str,
    entries: Sequence[Entry],
    settings: Mapping[str, object],
    overview: RunOverview | None = None,
) -> str:
    """The whole page as HTML: a title, the inputs, and settings with versions at the end.

    Args:
        title: Its heading.
        entries: The inputs that it shows.
        settings: How they were explained.
        overview: Of the run that they were drawn from, if any.
    """
    methods = list(dict.fromkeys(result.method for one in entries for result in one.results))
    of_texts = [result for one in entries if one.kind == "text" for result in one.results]
    of_photos = [result for one in entries if one.kind == "image" for result in one.results]
    columns = 1 + max(1, len(methods))
    script = read_asset("report/templates/page.js")
    repeated = find_repeated([one.notes for one in entries])
    page = render_template(
        "report/templates/page.html.j2",
        title=title,
        policy=_write_policy(script),
        script=script,
        entries=[_leave_out_notes(one, repeated) for one in entries],
        notes=merge_notes([[n for n in one.notes if n in repeated] for one in entries], "input"),
        models=list(dict.fromkeys(one.model for one in entries if one.model)),
        methods=methods,
        columns=columns,
        is_wide=columns > _NARROW,
        has_photos=bool(of_photos),
        has_texts=bool(of_texts),
        has_faithfulness=any(result.curves for one in entries for result in one.results),
        signed=any(is_signed(result.explained.scores) for result in of_texts),
        legend=_render_legend(of_photos),
        long=_LONG,
        overview=overview,
        summaries={kind: _summarize(kind, entries) for kind in ("image", "text")},
        settings=_format_settings(settings),
    )
    return str(page)


def _leave_out_notes(entry: Entry, repeated: Collection[str]) -> Entry:
    """An entry without the notes that are said once for all inputs."""
    notes = tuple(note for note in entry.notes if note not in repeated)
    return dataclasses.replace(entry, notes=notes)


def _write_policy(script: str) -> str:
    """A content security policy: nothing from outside, and no script but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = ("default-src 'none'", "img-src data:", "style-src 'unsafe-inline'")
    return "; ".join((*rules, f"script-src 'sha256-{digest}'", "base-uri 'none'"))


def _render_legend(results: Sequence[EntryResult]) -> str:
    """What the colours of maps mean; empty without maps."""
    colors = [prepare_map(result.explained.scores)[1] for result in results]
    return render_map_legend(colors, [result.strength for result in results]) if results else ""


def _summarize(kind: str, entries: Sequence[Entry]) -> list[MethodSummary]:
    """How faithful methods are on all inputs of a kind; empty for fewer than two inputs."""
    groups = group_scores([one for one in entries if one.kind == kind])
    if not groups or len(next(iter(groups.values()))) < 2:
        return []
    best = np.max(list(groups.values()), axis=0)
    summaries = []
    for method, values in groups.items():
        scores = np.array(values)
        mean = bootstrap_mean(scores)
        wins = int(np.sum(scores > best - 1e-9))
        median = float(np.median(scores))
        interval = (mean.estimate, mean.low, mean.high)
        summaries.append(MethodSummary(method, len(best), *interval, median, wins))
    return summaries


def _format_settings(settings: Mapping[str, object]) -> str:
    lines = json.dumps(settings, ensure_ascii=False, indent=2).split("\n")
    return "\n".join(map(to_printable, lines))
