"""Processes that do jobs beside this one, such as drawing figures while a GPU explains.

Drawing is Python and Pillow, and would take turns with the thread that keeps a GPU busy. Processes
are started afresh, not forked: a fork would copy what the GPU's driver holds.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

Job = TypeVar("Job")
Result = TypeVar("Result")


class Workers(Generic[Job, Result]):
    """Processes for jobs of one kind. Their results come in the order of the jobs.

    A job that a process cannot do is done in this one: then its error is raised here, and a run
    goes on where processes end, for lack of memory for instance.

    Args:
        function: Does a job. A function of a module; doing a job twice has to be no fault.
        count: How many processes there are at most.
        ahead: How many jobs may wait for a process, beside those that are being done.
        at_once: Whether all processes start now, and not when jobs wait for them.
    """

    def __init__(
        self, function: Callable[[Job], Result], count: int, ahead: int, at_once: bool
    ) -> None:
        self._function = function
        self._most = count + ahead
        self._pending: deque[tuple[Job, Future[Result]]] = deque()
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            # Torch is imported once for all of them. Not whence: this server does not know the
            # paths that this process imports from, and might find another version.
            context.set_forkserver_preload(["torch"])
        self._pool = ProcessPoolExecutor(count, context, _prepare_process)
        for _ in range(count if at_once else 0):
            self._pool.submit(_do_nothing)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Do jobs while the next ones are made.

        Args:
            jobs: Any number. A bounded number of them is kept at a time.

        Yields:
            Each job with its result, in their order.
        """
        for job in jobs:
            self._pending.append((job, self._submit(job)))
            while self._pending and (self._is_full or self._pending[0][1].done()):
                yield self._take_first()
        while self._pending:
            yield self._take_first()

    def finish(self) -> list[tuple[Job, Result]]:
        """End the processes after the jobs that have begun; all others are left undone.

        Returns:
            Jobs that were done, and that `run` did not yield, since it was interrupted.
        """
        self._pool.shutdown(cancel_futures=True)
        ended = [one for one in self._pending if not one[1].cancelled()]
        self._pending.clear()
        return [(job, done.result()) for job, done in ended if done.exception() is None]

    @property
    def _is_full(self) -> bool:
        return len(self._pending) > self._most

    def _submit(self, job: Job) -> Future[Result]:
        try:
            return self._pool.submit(_do, self._function, _Packed(job))
        except Exception as error:  # the processes have ended
            failed: Future[Result] = Future()
            failed.set_exception(error)
            return failed

    def _take_first(self) -> tuple[Job, Result]:
        job, future = self._pending[0]
        try:
            result = future.result()
        except Exception:
            result = self._function(job)
        self._pending.popleft()
        return job, result


class _Packed:
    """A job that is packed by the thread that sends it, and unpacked where it arrives.

    What is unpacked comes through the pipe from this process to its own, never from a file.
    """

    def __init__(self, job: object) -> None:
        self._job = job

    @override
    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return pickle.loads, (pack(self._job),)


class _Packer(pickle.Pickler):
    """Packs tensors as their bytes. Torch would put each into a shared file of its own."""

    @override
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return _rebuild_tensor, (plain.numpy().tobytes(), value.dtype, tuple(value.shape))


def pack(job: object) -> bytes:
    """Pack a job to be sent to another process."""
    stream = io.BytesIO()
    _Packer(stream, pickle.HIGHEST_PROTOCOL).dump(job)
    return stream.getvalue()


def _rebuild_tensor(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _prepare_process() -> None:
    """Leave interruptions to the first process, and the CPUs to its work where they are few."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(5)


def _do(function: Callable[[Any], Result], job: object) -> Result:
    return function(job)


def _do_nothing() -> None:
    pass
