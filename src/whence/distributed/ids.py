"""Sets of ids that take little memory: 16 bytes for each id, however long it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_BYTES = 16


class IdSet:
    """Ids, some perhaps more than once, kept as 128-bit hashes."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._hashes = bytearray()
        self._sorted: NDArray[np.bytes_] | None = None
        self.add(ids)

    def __len__(self) -> int:
        """How many ids were added, each as often as it was."""
        return len(self._hashes) // _BYTES

    def add(self, ids: Iterable[str]) -> None:
        """Add ids, of which only the hashes are kept."""
        for name in ids:
            self._hashes += _hash(name)
        self._sorted = None

    def find_known(self, ids: Sequence[str]) -> list[bool]:
        """Find which of these ids are in the set."""
        known = self._sort()
        if not len(known) or not ids:
            return [False] * len(ids)
        asked = _to_array(b"".join(map(_hash, ids)))
        places = np.searchsorted(known, asked).clip(max=len(known) - 1)
        return list(map(bool, known[places] == asked))

    def count_distinct(self) -> int:
        """Count the different ids."""
        known = self._sort()
        return len(known) - int((known[1:] == known[:-1]).sum())

    def subtract(self, other: IdSet) -> IdSet:
        """List the ids that are not in another set."""
        mine, others = np.unique(self._sort()), other._sort()
        if len(others):
            places = np.searchsorted(others, mine).clip(max=len(others) - 1)
            mine = mine[others[places] != mine]
        rest = IdSet()
        rest._hashes += mine.tobytes()
        return rest

    def list_repeated(self) -> IdSet:
        """List the ids that were added more than once."""
        known = self._sort()
        repeated = IdSet()
        repeated._hashes += np.unique(known[1:][known[1:] == known[:-1]]).tobytes()
        return repeated

    def _sort(self) -> NDArray[np.bytes_]:
        if self._sorted is None:
            self._sorted = np.sort(_to_array(bytes(self._hashes)))
        return self._sorted


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()


def _to_array(hashes: bytes) -> NDArray[np.bytes_]:
    return np.frombuffer(hashes, dtype=f"S{_BYTES}")
