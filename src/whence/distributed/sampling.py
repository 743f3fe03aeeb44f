"""Draw some rows of a result at random, and count all of them on the way."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from whence.distributed.folder import ResultFolder
from whence.distributed.rows import Row, import_arrow


@dataclass
class ClassCount:
    """How many inputs were explained for a class, and how probable it was on average."""

    inputs: int = 0
    probability: float | None = None  # None where it has none


@dataclass(frozen=True)
class DrawnRows:
    """Some rows of a result, and what all of its rows say.

    Attributes:
        rows: Explained ones, sorted by id.
        failures: Ids and errors of some that failed, sorted by id.
        explained: The number of all that are explained.
        failed: The number of all that failed.
        classes: The explained classes by name, the most frequent first; of several targets, the
            first counts.
        errors: The errors, the most frequent first.
    """

    rows: list[Row]
    failures: list[Row]
    explained: int
    failed: int
    classes: dict[str, ClassCount] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


def draw_rows(folder: ResultFolder, limit: int, seed: int = 0) -> DrawnRows:
    """Draw at most `limit` explained rows, and as many that failed, at random.

    The draw depends on ids and seed alone: not on the order in which inputs were explained. Memory
    grows with the number of different classes and errors, not with that of rows.

    Raises:
        WhenceError: A part is damaged.
    """
    drawn, failed = _Draw(limit, seed), _Draw(limit, seed)
    counts: Counter[str] = Counter()
    sums: defaultdict[str, float] = defaultdict(float)
    unknown: set[str] = set()
    errors: Counter[str] = Counter()
    for part in folder.list_parts():
        for batch in folder.read_batches(["id", "error", "name", "probability"], 8192, [part]):
            columns = (batch.column(n).to_pylist() for n in ("id", "error", "name", "probability"))
            for name, error, classes, chances in zip(*columns, strict=True):
                if error:
                    failed.offer(name, {"id": name, "error": error})
                    errors[error] += 1
                    continue
                drawn.offer(name, {"part": part})
                first = classes[0] if isinstance(classes, list) else classes
                chance = chances[0] if isinstance(chances, list) else chances
                counts[first] += 1
                if chance is None:
                    unknown.add(first)
                else:
                    sums[first] += chance
    classes = {
        name: ClassCount(count, None if name in unknown else sums[name] / count)
        for name, count in counts.most_common()
    }
    rows = _read_drawn(folder, {name: row["part"] for name, row in drawn.list_drawn()})
    failures = [row for _, row in failed.list_drawn()]
    total, lost = sum(counts.values()), sum(errors.values())
    return DrawnRows(rows, failures, total, lost, classes, dict(errors.most_common()))


class _Draw:
    """Keeps those of the smallest hashes: a random draw that does not depend on the order."""

    def __init__(self, limit: int, seed: int) -> None:
        self._limit, self._seed = limit, str(seed).encode()
        self._hashes: list[tuple[int, str]] = []  # a heap, the largest hash first
        self._rows: dict[str, Row] = {}

    def offer(self, name: str, row: Row) -> None:
        """Keep a row if it is among the smallest."""
        if name in self._rows:
            return
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8, key=self._seed)
        entry = (-int.from_bytes(digest.digest(), "big"), name)
        if len(self._hashes) < self._limit:
            heapq.heappush(self._hashes, entry)
        elif self._hashes and entry > self._hashes[0]:
            del self._rows[heapq.heapreplace(self._hashes, entry)[1]]
        else:
            return
        self._rows[name] = row

    def list_drawn(self) -> list[tuple[str, Row]]:
        """List ids and rows, sorted by id."""
        return [(name, self._rows[name]) for name in sorted(self._rows)]


def _read_drawn(folder: ResultFolder, parts: dict[str, str]) -> list[Row]:
    """Read whole rows by their ids and parts; other parts are not read."""
    pa, compute = import_arrow(), import_arrow("pyarrow.compute")
    wanted = pa.array(list(parts), pa.string())
    rows: dict[str, Row] = {}
    for batch in folder.read_batches(None, 512, sorted(set(parts.values()))):
        chosen = batch.filter(compute.is_in(batch.column("id"), wanted))
        rows.update((row["id"], row) for row in chosen.to_pylist())
    return [rows[name] for name in sorted(rows)]
