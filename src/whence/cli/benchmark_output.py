"""What `whence benchmark` prints."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.console import Console

from whence._util.text import to_printable
from whence.benchmark.formats import to_terminal
from whence.benchmark.output import BenchmarkResult
from whence.benchmark.overview import Overview, OverviewResult, formats
from whence.benchmark.overview.sentences import write_notes, write_sentences
from whence.benchmark.suite import SuiteResult
from whence.cli import options


def print_run(outcome: BenchmarkResult, quiet: bool) -> None:
    """Print the table of a run and what its overview says; problems go to standard error."""
    _print_problems(outcome)
    if quiet:
        return
    console = options.open_console()
    console.print(to_terminal(outcome.table))
    for note in outcome.table.notes:
        console.print(note)
    if outcome.overview is not None:
        _print_overview(console, outcome.overview)
    console.print(f"→ {outcome.folder / 'report.html'}", soft_wrap=True)


def print_suite(suite: SuiteResult, quiet: bool) -> None:
    """Print what was left out, the overview of several runs, and at last which of them failed."""
    for name, reason in suite.unfit.items():
        _print_problem(f"Left out: {name}: {reason}")
    for name, methods in suite.left_out.items():
        for method, reason in methods.items():
            _print_problem(f"Left out of {name}: {method}: {reason}")
    for name, outcome in suite.runs.items():
        _print_problems(outcome, f"{name}: ")
    if not quiet:
        _print_results(suite)
    # Last, so that nobody overlooks it.
    for name, reason in suite.failed.items():
        _print_problem(f"Failed: {name}: {reason}")
    if suite.failed:
        count = len(suite.failed)
        _print_problem(
            f"{count} of {count + len(suite.runs)} runs failed. Finished samples are kept; the "
            f"same command continues."
        )


def _print_results(suite: SuiteResult) -> None:
    if suite.overview is not None:
        print_overview(suite.overview)
        return
    for outcome in suite.runs.values():
        options.open_console().print(f"→ {outcome.folder / 'report.html'}", soft_wrap=True)


def print_overview(written: OverviewResult) -> None:
    """Print what an overview says, and where it is."""
    for folder in written.unfinished:
        _print_problem(f"'{folder}' has not finished, and is no part of the overview.")
    console = options.open_console()
    _print_overview(console, written.overview)
    console.print(f"→ {written.folder / 'overview.html'}", soft_wrap=True)


def _print_overview(console: Console, overview: Overview) -> None:
    console.print(formats.to_terminal(overview))
    for sentence in write_sentences(overview):
        console.print(f"· {to_printable(sentence)}")
    for note in write_notes(overview):
        console.print(note, style="dim")


def _print_problems(outcome: BenchmarkResult, start: str = "") -> None:
    for damaged in outcome.set_aside:
        _print_problem(f"{start}'{damaged}' was damaged; it was set aside and computed again.")
    for line in _describe_skipped(outcome.skipped):
        _print_problem(f"{start}{line}")


def _print_problem(line: str) -> None:
    typer.echo(to_printable(line), err=True)


def _describe_skipped(skipped: Mapping[str, str]) -> list[str]:
    """A line for each reason why samples were skipped, with their number and the first of them."""
    reasons: dict[str, list[str]] = {}
    for name, error in skipped.items():
        reasons.setdefault(error.replace(name, ""), []).append(name)
    return [
        f"Skipped {names[0]}: {skipped[names[0]]}"
        + (f" ({len(names)} samples)" if len(names) > 1 else "")
        for names in reasons.values()
    ]
