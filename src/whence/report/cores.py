"""Build entries in threads of their own, while the next inputs are explained.

Threads of torch that share one operation wait for each other at its end, again and again. Where
other programs keep the CPU busy, most of the time goes into that. So each thread gets photos of its
own; where nothing else runs, that saves little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

import torch

from whence.models import LoadedModel

Item = TypeVar("Item")
Result = TypeVar("Result")

# So many threads build entries, each on its share of the cores: explaining a photo takes about a
# fourth of the time that its faithfulness takes.
_MOST_WORKERS = 4
# Photos that are explained at once: hardly faster with more, and workers wait for the first ones.
PHOTOS_AT_ONCE = 4


def can_share_cores(models: Collection[LoadedModel]) -> bool:
    """Whether entries can be built in threads: of photos on a CPU.

    A tokenizer may be used by one thread only, and a GPU has no cores to share.
    """
    on_cpu = all(torch.device(one.device).type == "cpu" for one in models)
    return on_cpu and all(one.kind == "image" for one in models)


@contextmanager
def share_cores(is_shared: bool = True) -> Iterator[int]:
    """Give each thread its share of the cores, and yield for how many workers; 0 for none.

    Torch uses fewer cores in all threads of the program until the block ends.
    """
    if not is_shared:
        yield 0
        return
    cores = torch.get_num_threads()
    workers = min(cores, _MOST_WORKERS)
    torch.set_num_threads(max(1, cores // workers))
    try:
        yield workers
    finally:
        torch.set_num_threads(cores)


def map_in_workers(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Do work on items in other threads, while this one makes the next items.

    Few items are made ahead. Without workers, the work is done in this thread.

    Yields:
        The results, as soon as they are there.
    """
    if not workers:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, "whence report")
    pending: set[Future[Result]] = set()
    try:
        for item in items:
            pending.add(pool.submit(copy_context().run, work, item))
            while len(pending) > 2 * workers:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)
    finally:
        pool.shutdown(cancel_futures=True)
