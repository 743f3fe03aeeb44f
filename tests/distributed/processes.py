"""Find the processes of a Ray that a test started, so that it can kill them. On Linux."""

import time
from pathlib import Path

_ACTOR = b"MapBatches(BlockExplainer)"
# Generous: a loaded machine starts a process of Ray in half a minute.
LIMIT = 240.0


def find_actors(ancestor: int) -> list[int]:
    """Find the ids of actors that explain, below a process."""
    parents: dict[int, int] = {}
    actors = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
        if _ACTOR in command:
            actors.append(int(folder.name))
    return sorted(actor for actor in actors if _is_below(actor, ancestor, parents))


def _is_below(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process not in (0, 1, ancestor):
        process = parents.get(process, 0)
    return process == ancestor


def count_parts(folder: Path) -> int:
    """Count the finished parts of results."""
    names = [path.name for path in (folder / "_whence" / "checkpoint").glob("*.parquet")]
    return sum(not name.endswith(".pending.parquet") for name in names)


def wait_for(is_so, limit: float = LIMIT) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
