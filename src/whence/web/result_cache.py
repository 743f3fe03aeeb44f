"""Keeps the most recently used results of a computation, so that they are not computed again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

T = TypeVar("T")


class ResultCache:
    """A least-recently-used cache of `size` results that several threads may use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._results: OrderedDict[Hashable, object] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._results)

    def get_or_compute(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result that is kept under a key, or compute and keep it."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return cast("T", self._results[key])
        result = compute()
        with self._lock:
            self._results[key] = result
            while len(self._results) > self.size:
                self._results.popitem(last=False)
        return result
