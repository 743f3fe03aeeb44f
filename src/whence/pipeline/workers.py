"""Processes that do jobs beside this one, such as drawing figures while a GPU explains.

Drawing is Python and Pillow, and would take turns with the thread that keeps a GPU busy. Processes
are not forked from this one: a fork would copy what the GPU's driver holds. They are copies of a
server, which imports once what all of them need.
"""

from __future__ import annotations

import ctypes
import gc
import io
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

Job = TypeVar("Job")
Result = TypeVar("Result")

# What processes that draw and write need; most of their start.
_IMPORTS = ("torch", "whence.pipeline.results")
# Numbers by which the C library knows its settings, and bytes: freed memory is kept up to these.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _KEPT, _LARGEST = -1, -3, 256 << 20, 32 << 20

_server_lock = Lock()


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
        get_ready: What each process does at once, while this one goes on; None if processes start
            when jobs wait for them.
        imports: Modules that processes need beside those for drawing. The first workers choose
            them: all are copies of one server.
    """

    def __init__(
        self,
        function: Callable[[Job], Result],
        count: int,
        ahead: int,
        get_ready: Callable[[], object] | None,
        imports: Sequence[str] = (),
    ) -> None:
        self._function = function
        self._most = count + ahead
        self._pending: deque[tuple[Job, Task[Result]]] = deque()
        has_server = "forkserver" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if has_server else "spawn")
        if has_server:
            _start_server([*_IMPORTS, *imports])
        self._pool = ProcessPoolExecutor(count, context, _prepare_process)
        if get_ready is not None:
            # A process starts when the server has imported all, which this one need not wait for.
            Thread(target=self._start_processes, args=(get_ready, count), daemon=True).start()

    def _start_processes(self, get_ready: Callable[[], object], count: int) -> None:
        with suppress(Exception):  # the work has ended before
            for _ in range(count):
                self._pool.submit(get_ready)

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


def _start_server(imports: Sequence[str]) -> None:
    """Start the server that processes are copies of, unless it runs; it imports modules first.

    It is told the paths that this process imports from: it might find other versions otherwise.
    """
    from multiprocessing import forkserver  # not on every system

    if sys.flags.ignore_environment:  # then it cannot be told
        imports = [name for name in imports if not name.startswith("whence.")]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    told = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    with _server_lock:
        before = {name: os.environ.get(name) for name in told}
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(imports))
        os.environ.update(told)
        try:
            forkserver.ensure_running()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _prepare_process() -> None:
    """Leave interruptions to the first process, and the CPUs to its work where they are few."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    gc.freeze()  # modules are not searched for garbage
    _keep_memory()
    if hasattr(os, "nice"):
        os.nice(5)


def _keep_memory() -> None:
    """Keep memory that is freed: the next picture needs as much, and new pages take long to come.

    Other C libraries than that of GNU have no such settings.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(_TRIM_THRESHOLD, _KEPT)
            library.mallopt(_MMAP_THRESHOLD, _LARGEST)


def _do(function: Callable[[Any], Result], job: object) -> Result:
    return function(job)
