"""Python's collector of cyclic garbage, which is held off while objects are made in great numbers.

A recorded forward pass is thousands of objects that live for milliseconds, and a library that is
imported is many more, which stay. They make Python look through all objects of the process again
and again, which takes up to half a second each time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_held_by = 0  # so many threads
_was_on = False


@contextmanager
def hold_off_collection() -> Iterator[None]:
    """Collect no cyclic garbage until the block ends, in whatever thread."""
    global _held_by, _was_on
    with _lock:
        if _held_by == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _held_by += 1
    try:
        yield
    finally:
        with _lock:
            _held_by -= 1
            if _held_by == 0 and _was_on:
                gc.enable()


@contextmanager
def end_quickly() -> Iterator[None]:
    """Let the process end as soon as the block has: nothing is searched for garbage any more."""
    try:
        yield
    finally:
        gc.freeze()
