"""How much memory a call takes beyond what was in use before it."""

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

STATM = Path("/proc/self/statm")
PAGE = 4096


class Peak(NamedTuple):
    """Bytes at most beyond those before; None where it is unknown.

    Attributes:
        used: On a GPU what torch's allocator handed out, on a CPU the resident set.
        held: What the process held on the GPU, with what its allocator and CUDA graphs keep.
        before: What was in use before: the model and the inputs.
    """

    used: float | None = None
    held: float | None = None
    before: float | None = None


def measure_peak(run: Callable[[], Any], device: torch.device) -> Peak:
    """Run a function once, and measure its peak."""
    if device.type == "cuda":
        return _measure_on_gpu(run)
    if not STATM.exists():
        run()
        return Peak()
    release_memory()
    done, sizes = threading.Event(), [_read_resident_bytes()]

    def watch() -> None:
        while not done.wait(0.001):
            sizes.append(_read_resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return Peak(max(sizes) - sizes[0], None, sizes[0])


def release_memory() -> None:
    """Give freed memory back to the system, so that the next peak shows."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _measure_on_gpu(run: Callable[[], Any]) -> Peak:
    gc.collect()
    torch.cuda.empty_cache()
    used, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return Peak(
        torch.cuda.max_memory_allocated() - used, torch.cuda.max_memory_reserved() - held, used
    )


def _read_resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * PAGE
