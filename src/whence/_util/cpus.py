"""How many CPUs there are for the work at hand."""

from __future__ import annotations

import os


def count_cpus() -> int:
    """Count the CPUs that this process may use."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
