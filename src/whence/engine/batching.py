"""Batching: a batch goes through the engine in chunks that keep to a bound of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

from whence.engine.eager import run_eagerly
from whence.engine.request import Request, Result
from whence.errors import TooLargeError
from whence.evidence.kinds import AT_MAPS

# The share of the memory that the attention maps of one site may take; several are in use at once.
_SHARE_OF_A_MAP = 1 / 16

Pending = Callable[[], Result]
"""Gives the result of a chunk that was asked for; it may have to wait for a GPU."""


class RunCompiled(Protocol):
    """Runs a chunk by a compiled program."""

    def __call__(self, request: Request, max_map_bytes: float, class_count: int) -> Pending | None:
        """The result of a chunk; None if there is no program for it."""


class Batching:
    """Explains batches in chunks, and remembers how much memory a sample takes."""

    def __init__(self) -> None:
        self._sample_bytes: dict[Hashable, float] = {}
        self._class_count = 0

    def run(self, request: Request, run_compiled: RunCompiled | None = None) -> Result:
        """Explain as many samples at a time as memory allows.

        Args:
            request: What to explain.
            run_compiled: Runs chunks by compiled programs where it can; eagerly if left out.
        """
        batch, bound = request.batch, request.max_bytes
        in_heads = not _reads_whole_maps(request)
        map_bytes = bound * _SHARE_OF_A_MAP if in_heads else math.inf
        if request.keep_evidence or "forwards" in request.method.needs:
            return run_eagerly(request, math.inf, map_bytes)
        shapes = tuple(tuple(x.shape[1:]) for x in request.arguments.tensors)
        key = shapes, request.arguments.explained_names, in_heads
        if run_compiled is not None and key not in self._sample_bytes:
            cuttable = request.make_cuttable() if batch > 1 else None
            one = request if cuttable is None else cuttable.select_rows(slice(0, 1))
            self._run_eagerly(key, one, math.inf, map_bytes)
        chunks: list[tuple[Pending, int]] = []
        start, at_once = 0, batch
        while start < batch:
            # How much a sample takes is known once one was explained.
            sample = self._sample_bytes.get(key)
            if sample is not None:
                at_once = split_evenly(batch, int(bound / max(sample, 1.0)))
            if at_once < batch:
                cuttable = request.make_cuttable()
                at_once, bound = (batch, math.inf) if cuttable is None else (at_once, bound)
                request = request if cuttable is None else cuttable
            rows = slice(start, min(start + at_once, batch))
            pending = None
            if run_compiled is not None:
                # A program is for one shape: rather some samples twice than another shape.
                rows = slice(max(0, rows.stop - at_once), rows.stop)
                chunk = request.select_rows(rows)
                pending = run_compiled(chunk, map_bytes, self._class_count)
            if pending is None:
                limit = bound if at_once > 1 else math.inf
                try:
                    result = self._run_eagerly(key, request.select_rows(rows), limit, map_bytes)
                except TooLargeError:
                    at_once = (at_once + 1) // 2
                    if sample is not None:  # others took less
                        self._sample_bytes[key] = bound / at_once
                    continue
                pending = partial(_identity, result)
            chunks.append((pending, rows.stop - start))
            start = rows.stop
        # A GPU is waited for when all has been asked of it.
        return Result.concatenate([pending().select_last(samples) for pending, samples in chunks])

    def _run_eagerly(
        self, key: Hashable, request: Request, max_bytes: float, max_map_bytes: float
    ) -> Result:
        result = run_eagerly(request, max_bytes, max_map_bytes)
        self._sample_bytes.setdefault(key, result.sample_bytes)
        self._class_count = result.logits.shape[1]
        return result


def _reads_whole_maps(request: Request) -> bool:
    """Whether attention maps have to be in memory as they are, and not computed again in chunks."""
    method = request.method
    if request.keep_evidence or (method.propagates and not request.rules.supports_partial):
        return True  # rules that look at all heads at once need all of their maps
    return not method.streamed and not AT_MAPS.isdisjoint(method.needs)


def _identity(result: Result) -> Result:
    return result


def split_evenly(samples: int, most: int) -> int:
    """The size of the fewest chunks of at most so many samples that are nearly equal."""
    return math.ceil(samples / math.ceil(samples / max(1, most)))
