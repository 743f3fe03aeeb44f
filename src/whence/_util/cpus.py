"""How many CPUs there are for the work at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def count_cpus() -> int:
    """Count the CPUs that this process may use."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def leave_cpus_to_others(needed: bool) -> Iterator[None]:
    """Compute in one thread until the block ends, where a GPU and other processes do the work.

    Torch's threads wait for work by asking for it all the time, which keeps as many CPUs busy.

    Args:
        needed: Whether to; else nothing is changed.
    """
    if not needed:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
