"""Run work in chunks that fit into memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whence.errors import MemoryShortError


def run_in_chunks(count: int, chunk_size: int, work: Callable[[range], Tensor]) -> Tensor:
    """Concatenate the results of work on ranges of 0 … count - 1.

    Chunks are halved where the device runs out of memory.

    Args:
        count: How many rows there are.
        chunk_size: How many rows a chunk has at most.
        work: Computes the results (rows, ...) of a range of rows.

    Raises:
        MemoryShortError: Memory is too small for a single row.
    """
    results: list[Tensor] = []
    done = 0
    while done < count:
        chunk = range(done, min(done + chunk_size, count))
        try:
            results.append(work(chunk))
        except torch.OutOfMemoryError:
            if len(chunk) == 1:
                raise MemoryShortError("The device's memory is too small for this model.") from None
            chunk_size = len(chunk) // 2
            torch.cuda.empty_cache()  # does nothing where no GPU is in use
            continue
        done = chunk.stop
    return torch.cat(results)
