"""How many CPUs there are for the work at hand."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_CPUS = "/proc/cpuinfo"  # where Linux describes them


def count_cpus() -> int:
    """Count the CPUs that this process may use."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpu_vendor() -> str:
    """Read who made the processor, such as ``AuthenticAMD``; empty if nothing tells it."""
    try:
        with open(_CPUS, encoding="utf-8", errors="replace") as lines:
            named = (line for line in lines if line.startswith("vendor_id"))
            return next(named, "").partition(":")[2].strip()
    except OSError:  # there is none but on Linux
        return platform.processor().rpartition(" ")[2]


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
