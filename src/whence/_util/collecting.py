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
_keeps_next = False  # whether what is loaded next stays to the end of the process


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
def hold_off_while_loading() -> Iterator[None]:
    """Collect no garbage while a library is imported and a model is loaded.

    What the process of one command loads first stays to its end, and is not searched again.
    """
    global _keeps_next
    with hold_off_collection():
        yield
        if _keeps_next:
            gc.freeze()
            _keeps_next = False


@contextmanager
def run_one_command() -> Iterator[None]:
    """Run what a process is for, and let it end without a last search for garbage."""
    global _keeps_next
    _keeps_next = True
    try:
        yield
    finally:
        _keeps_next = False
        gc.freeze()
