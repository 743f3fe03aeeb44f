"""Say in sentences what an overview shows, above all where the best on average is beaten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whence._util.defaults import METHOD
from whence.benchmark.overview.summary import BetterMethod, Overview, RankComparison, Standing
from whence.metrics.statistics import ConfidenceInterval

_NAMED = 4
_NAMED_TIES = 8


def write_sentences(overview: Overview) -> list[str]:
    """Write the sentences of an overview, the most important first."""
    sentences = [_describe_extent(overview)]
    comparison = overview.comparison
    if comparison is None:
        sentences.append("Fewer than two methods have a figure in every criterion: no ranking.")
    else:
        sentences.append(_describe_best(comparison))
        sentences += _describe_standing(overview, comparison.best, "the best on average")
        if METHOD in comparison.mean_ranks and comparison.best != METHOD:
            place = list(comparison.mean_ranks).index(METHOD) + 1
            sentences += _describe_standing(overview, METHOD, f"the default, place {place}")
    sentences += _describe_agreement(overview)
    sentences += _describe_left_out(overview)
    return sentences


def write_notes(overview: Overview) -> list[str]:
    """Write how the figures of an overview are to be read."""
    notes = []
    comparison = overview.comparison
    if comparison is not None:
        over = _count(comparison.count, comparison.blocks.removesuffix("s"))
        if comparison.blocks == "runs":
            over += " (model, dataset and protocol)"
        if len(overview.criteria) > (comparison.count if comparison.blocks == "runs" else 1):
            over += ", on each the mean over the figures"
        test = {
            "nemenyi": "Nemenyi's critical difference",
            "wilcoxon": "Wilcoxon's signed-rank test of the ranks, Holm-corrected over all pairs",
        }
        notes.append(
            f"Ranks are over {over}; 1 is best, and equal ones share the mean. Friedman's test of "
            f"whether methods differ at all: p = {comparison.friedman.p_value:.2g}. Which do, is "
            f"told by {test[comparison.ranking]} at 5 %."
        )
        if comparison.blocks == "runs":
            notes.append(
                "Runs of one model or dataset share photos or texts, so they are not independent: "
                "take differences of mean ranks as a description of these runs, not as a claim "
                "about others."
            )
    notes.append(
        "A method is beaten in a criterion if another is significantly better there (paired test "
        "on the samples, Holm-corrected over the methods, 5 %), leads if all others are "
        "significantly worse, and ties otherwise."
    )
    return notes


def _describe_extent(overview: Overview) -> str:
    criteria = overview.criteria
    counts = {
        "model": len({one.model for one in criteria}),
        "dataset": len({one.dataset for one in criteria}),
        "protocol": len({one.protocol for one in criteria}),
    }
    listed = ", ".join(_count(number, name) for name, number in counts.items())
    extent = f"{_count(len(criteria), 'criterion', 'criteria')} ({listed})"
    return f"{_count(len(overview.methods), 'method')} in {extent}."


def _describe_best(comparison: RankComparison) -> str:
    ranks = comparison.mean_ranks
    best = comparison.best
    alike = comparison.like_best
    shared = [m for m in ranks if m != best and np.isclose(ranks[m], ranks[best])]
    text = f"Best on average is {best}: mean rank {ranks[best]:.2f} of {len(ranks)}"
    if shared:
        text += f", the same as {_join(shared)}"
    if not alike:
        return f"{text}. All others have significantly worse mean ranks."
    named = [f"{method} ({ranks[method]:.2f})" for method in alike]
    return f"{text}. Not significantly different: {_join(named, _NAMED_TIES)}."


def _describe_standing(overview: Overview, method: str, what: str) -> list[str]:
    """Where a method is beaten, by which and by how much; where it ties and leads."""
    standings = overview.standings[method]
    counts = overview.count_verdicts(method)
    beaten = [one for one in standings if one.verdict == "beaten"]
    share = f"{100 * overview.share_beaten(method):.0f} %"
    sentences = [
        f"{method} ({what}) leads in {counts['leads']}, ties in {counts['ties']} and is "
        f"significantly beaten in {counts['beaten']} of {len(standings)} criteria ({share})."
    ]
    sentences += [_describe_defeat(overview, method, one) for one in beaten]
    for verdict, verb in (("leads", "leads"), ("ties", "ties")):
        where = [overview.names[one.criterion] for one in standings if one.verdict == verdict]
        if where:
            shown = "; ".join(where[:_NAMED])
            rest = f"; and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
            sentences.append(f"{method} {verb} in: {shown}{rest}.")
    return sentences


def _describe_defeat(overview: Overview, method: str, standing: Standing) -> str:
    criterion = overview.criteria[standing.criterion]
    own = criterion.format_value(criterion.cells[method].value)

    def describe(one: BetterMethod) -> str:
        value = criterion.format_value(criterion.cells[one.method].value)
        p = f"p = {one.p_value:.2g}"
        return f"{one.method} ({value} against {own}, {p})"

    named = [describe(one) for one in standing.better]
    return f"{method} is beaten in {overview.names[standing.criterion]} by {_join(named, _NAMED)}."


def _describe_agreement(overview: Overview) -> list[str]:
    agreement = overview.agreement
    if agreement is None or np.isnan(agreement.mean.estimate):
        return []
    sentences = [
        f"The rankings of two criteria agree by Kendall's τ = {_format_interval(agreement.mean)} "
        f"on average (1: the same order, 0: unrelated)."
    ]
    if len(overview.criteria) > 2:
        pairs = np.where(np.triu(np.ones_like(agreement.tau), 1) > 0, agreement.tau, np.nan)
        ends = []
        for word, at in (("most", np.nanargmax(pairs)), ("least", np.nanargmin(pairs))):
            one, other = np.unravel_index(at, pairs.shape)
            names = f"{overview.names[one]} and {overview.names[other]}"
            ends.append(f"{word} {names} ({pairs[one, other]:.2f})")
        sentences[0] = f"{sentences[0][:-1]}: {', '.join(ends)}."
    if agreement.means:
        listed = [f"{kind}: {_format_interval(mean)}" for kind, mean in agreement.means.items()]
        sentences.append(f"Mean τ by kind of pair: {'; '.join(listed)}.")
    return sentences


def _describe_left_out(overview: Overview) -> list[str]:
    sentences = []
    if overview.left_out:
        named = [f"{method} ({len(without)})" for method, without in overview.left_out.items()]
        listed = ", ".join(named)
        sentences.append(f"Not ranked, for want of a figure in so many criteria: {listed}.")
    empty = [" · ".join(reversed(run.key)) for run in overview.runs if not run.table.metrics]
    if empty:
        sentences.append(f"No criteria, since no sample has a figure: {'; '.join(empty)}.")
    return sentences


def _format_interval(found: ConfidenceInterval) -> str:
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _join(names: Sequence[str], most: int | None = None) -> str:
    shown = list(names[:most])
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
