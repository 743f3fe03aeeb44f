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
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

Job = TypeVar("Job")
Result = TypeVar("Result")


class Task(Generic[Result]):
    """A job that another process does; where it cannot, this one does something instead."""

    def __init__(self, future: Future[Result], instead: Callable[[], Result]) -> None:
        self._future = future
        self._instead = instead

    @property
    def is_done(self) -> bool:
        """Whether its result, or an error, is there."""
        return self._future.done()

    @property
    def has_result(self) -> bool:
        """Whether another process has done it."""
        done = self._future.done() and not self._future.cancelled()
        return done and self._future.exception() is None

    def result(self) -> Result:
        """Wait for the result."""
        try:
            return self._future.result()
        except Exception:
            return self._instead()


class Workers(Generic[Job, Result]):
    """Processes for jobs of one kind. Their results come in the order of the jobs.

    A job that a process cannot do is done in this one: then its error is raised here, and a run
    goes on where processes end, for lack of memory for instance.

    Args:
        function: Does a job. A function of a module; doing a job twice has to be no fault.
        count: How many processes there are at most.
        ahead: How many jobs of `run` may wait for a process, beside those that are being done.
        at_once: Whether all processes start now, and not when jobs wait for them.
    """

    def __init__(
        self, function: Callable[[Job], Result], count: int, ahead: int, at_once: bool
    ) -> None:
        self._function = function
        self._most = count + ahead
        self._pending: deque[tuple[Job, Task[Result]]] = deque()
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
            self._pending.append((job, self.submit(job)))
            while self._pending and (self._is_full or self._pending[0][1].is_done):
                yield self._take_first()
        while self._pending:
            yield self._take_first()

    def submit(self, job: Job, instead: Callable[[], Result] | None = None) -> Task[Result]:
        """Let a process do a job.

        Args:
            job: What the function takes.
            instead: What is done here if no process can do it; the same if left out.
        """
        try:
            future = self._pool.submit(_do, self._function, _Packed(job))
        except Exception as error:  # the processes have ended
            future = Future()
            future.set_exception(error)
        return Task(future, instead or partial(self._function, job))

    def finish(self) -> list[tuple[Job, Result]]:
        """End the processes after the jobs that have begun; all others are left undone.

        Returns:
            Jobs that were done, and that `run` did not yield, since it was interrupted.
        """
        self._pool.shutdown(cancel_futures=True)
        done = [(job, task.result()) for job, task in self._pending if task.has_result]
        self._pending.clear()
        return done

    @property
    def _is_full(self) -> bool:
        return len(self._pending) > self._most

    def _take_first(self) -> tuple[Job, Result]:
        job, task = self._pending[0]
        result = task.result()
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
