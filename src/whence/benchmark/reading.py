"""Read and prepare samples in a few threads while the model works on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from whence._util.text import first_line
from whence.benchmark.protocols.base import NamedSample
from whence.errors import WhenceError

_THREADS = 4
_AHEAD = 2


@dataclass(frozen=True)
class UnreadableSample:
    """A sample that cannot be read or prepared.

    Attributes:
        name: Its name.
        error: Why, in a sentence.
    """

    name: str
    error: str


def read_batches(
    groups: Sequence[Sequence[str]], read: Callable[[str], NamedSample]
) -> Iterator[list[NamedSample]]:
    """Yield the samples of each group of names, while the next groups are being read.

    Args:
        groups: Names of samples.
        read: Reads and prepares one; runs in threads.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="whence-reading") as pool:
        waiting: list[list[Future[NamedSample]]] = []
        try:
            for at in range(len(groups)):
                for group in groups[at + len(waiting) : at + _AHEAD]:
                    waiting.append([pool.submit(_read, read, name) for name in group])
                yield [one.result() for one in waiting.pop(0)]
        finally:
            for future in (one for group in waiting for one in group):
                future.cancel()


def _read(read: Callable[[str], NamedSample], name: str) -> NamedSample:
    try:
        return read(name)
    except WhenceError as error:
        return UnreadableSample(name, str(error))
    except Exception as error:  # one odd sample must not end the run
        reason = f"{type(error).__name__}: {first_line(error)}"
        return UnreadableSample(name, f"It cannot be read: {reason}.")
