"""Showing how far long work has come: a bar in a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_shown: ContextVar[bool] = ContextVar("a bar is shown", default=False)


@contextmanager
def bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar until the block ends; what it yields is called with each number of steps done.

    It tells how many steps are done, and how much time has passed and is left.

    Only one bar is shown at a time, the outermost, and only to a terminal.
    """
    if _shown.get() or not sys.stderr.isatty():
        yield lambda steps: None  # noqa: ARG005
        return
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
    token = _shown.set(True)
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(doing, total=total)
            yield lambda steps: progress.advance(task, steps)
    finally:
        _shown.reset(token)
