"""Samples ahead of the model: read and prepared by a few threads while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from whence.errors import WhenceError

_THREADS = 4
_AHEAD = 2


@dataclass(frozen=True)
class Broken:
    """A record that cannot be used.

    Attributes:
        name: Its name.
        error: Why, in a sentence.
    """

    name: str
    error: str


def batches(
    groups: Sequence[Sequence[str]], read: Callable[[str], Any]
) -> Iterator[list[Any | Broken]]:
    """What was read for each group of names, in order, while the next groups are being read.

    Args:
        groups: Names of samples.
        read: Reads and prepares one; runs in threads.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="whence-reading") as pool:
        waiting: list[list[Future[Any]]] = []
        try:
            for at in range(len(groups)):
                for group in groups[at + len(waiting) : at + _AHEAD]:
                    waiting.append([pool.submit(_read, read, name) for name in group])
                yield [one.result() for one in waiting.pop(0)]
        finally:
            for future in (one for group in waiting for one in group):
                future.cancel()


def _read(read: Callable[[str], Any], name: str) -> Any | Broken:
    try:
        return read(name)
    except WhenceError as error:
        return Broken(name, str(error))
    except Exception as error:  # one odd record must not end the others
        said = str(error).split("\n")[0].rstrip(".")
        return Broken(name, f"It cannot be read: {type(error).__name__}: {said}.")
