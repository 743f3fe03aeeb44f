"""Showing how far long work has come: a bar in a terminal, or to whoever watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

_shown: ContextVar[bool] = ContextVar("a bar is shown", default=False)
_display: ContextVar[Progress | None] = ContextVar("where bars are drawn", default=None)


class Watcher(Protocol):
    """Is told how far work has come, and may end it by an error of its own."""

    def report(self, doing: str, done: int, total: int) -> None:
        """Take note that so many of all steps are done."""

    def check(self) -> None:
        """Raise an error if the work is to end; called many times a second."""


_watcher: ContextVar[Watcher | None] = ContextVar("the watcher", default=None)
_name: ContextVar[str] = ContextVar("the name of the work", default="")


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher, and not a terminal, of the work in this block and this thread."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def name_work(name: str) -> Iterator[None]:
    """Give what a watcher is told in this block a name, such as that of a method."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def check_watcher() -> None:
    """Give a watcher the occasion to end the work."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.check()


def report_progress(doing: str, done: int, total: int) -> None:
    """Tell a watcher that so many of all steps are done; it may end the work."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.check()
        name = _name.get()
        watcher.report(f"{name}: {doing}" if name else doing, done, total)


@contextmanager
def bar(doing: str, total: int, *, beside: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar until the block ends; what it yields is called with each number of steps done.

    It tells how many steps are done, and how much time has passed and is left.

    Only one bar is shown at a time, the outermost of more than one step, and only to a terminal or
    a watcher.

    Args:
        doing: What is done, in a few words.
        total: How many steps it has.
        beside: Whether to show it inside of another bar's block too: what holds that one up.
    """
    is_watched = _watcher.get() is not None
    hidden = _shown.get() and not beside
    if hidden or total < 2 or not (is_watched or sys.stderr.isatty()):
        yield lambda steps: check_watcher()  # noqa: ARG005
        return
    token = _shown.set(True)
    try:
        with (_report if is_watched else _draw)(doing, total) as advance:
            yield advance
    finally:
        _shown.reset(token)


@contextmanager
def _report(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        report_progress(doing, done, total)

    advance(0)
    yield advance


@contextmanager
def _draw(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    outer = _display.get()
    if outer is not None:
        task = outer.add_task(doing, total=total)
        try:
            yield lambda steps: outer.advance(task, steps)
        finally:
            outer.remove_task(task)
        return
    with _open_display() as display:
        task = display.add_task(doing, total=total)
        token = _display.set(display)
        try:
            yield lambda steps: display.advance(task, steps)
        finally:
            _display.reset(token)


def _open_display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
