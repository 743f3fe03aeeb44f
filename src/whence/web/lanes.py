"""Computes requests in two lanes, so that a slow one does not hold up a quick one.

A request starts in the quick lane. Work that takes long calls `enter_slow_lane`: the request then
leaves the quick lane, and starts again in the slow one. What was computed before is in a cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

import torch

from whence._util.progress import watch
from whence.errors import WhenceError

R = TypeVar("R")

# Work of more seconds belongs in the slow lane.
_QUICK_SECONDS = 2.0
# How often a job looks whether its visitor has left, in seconds.
_LOOK_SECONDS = 0.5
# How much the slow lane makes way for the quick one, on the scale of `nice`.
_NICENESS = 5
_CORES = torch.get_num_threads()

_is_quick: ContextVar[bool] = ContextVar("in the quick lane", default=False)
_preparation = threading.Lock()


def _prepare_thread(cores: int, niceness: int) -> None:
    """Set how many cores torch uses in this thread, and how much it makes way for others."""
    with _preparation:
        torch.set_num_threads(cores)
        torch.get_num_threads()  # which holds this thread to it, whatever others set later
    # Linux has priorities of threads; elsewhere it would be that of the whole program.
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(now + niceness, 19))


# One thread a lane, for all pages of this program: torch keeps memory for every thread that ever
# computed. Slow work takes half of the cores: threads of torch that wait for each other while two
# lanes share all cores would waste most of them.
_QUICK = ThreadPoolExecutor(1, "whence quick", _prepare_thread, (_CORES, 0))
_SLOW = ThreadPoolExecutor(1, "whence slow", _prepare_thread, (max(1, _CORES // 2), _NICENESS))


class SlowWorkError(Exception):
    """Work in the quick lane turned out to be slow."""


class JobCancelledError(BaseException):
    """A job was cancelled. No `except Exception` of a model's code may hold it up."""


def enter_slow_lane() -> None:
    """Move to the slow lane, if this is the quick one, by an error that starts the job again."""
    if _is_quick.get():
        raise SlowWorkError


class Pace:
    """Sends work to the slow lane that is known to be slow, or took long the last time."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    @contextlib.contextmanager
    def measure(self, work: Hashable, is_slow: bool = False) -> Iterator[None]:
        """Measure the time of work, by its name, and move to the slow lane if it is slow."""
        if is_slow or self._seconds.get(work, 0) > _QUICK_SECONDS:
            enter_slow_lane()
        start = time.thread_time()  # not that of others who keep the machine busy
        yield
        self._seconds[work] = time.thread_time() - start


class Job:
    """One request of a visitor: it tells how far it has come, and can be cancelled.

    Args:
        visitor: Who asked.
        show: Shows what is being done, how many steps of all are done, and what these are.
        has_left: Whether the visitor has left.
    """

    def __init__(
        self,
        visitor: str,
        show: Callable[[str | None, tuple[int, int | None], str], None],
        has_left: Callable[[], bool],
    ) -> None:
        self.visitor, self._show, self._has_left = visitor, show, has_left
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the job, from any thread. The thread that computes it stops a moment later."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):  # the page was closed in between
            self._loop.call_soon_threadsafe(self._end.set)

    def report(self, doing: str, done: int, total: int) -> None:
        """Show how far the work has come."""
        self._show(doing, (done, total), "steps")

    def check(self) -> None:
        """Raise an error if the job was cancelled."""
        if self._is_cancelled:
            raise JobCancelledError

    def show_place(self, before: int) -> None:
        """Show how many others come first."""
        others = "requests come" if before > 1 else "request comes"
        self._show(None, (before, None), f"{others} first")

    def run(self, work: Callable[[], R], is_quick: bool) -> R:
        """Run work in this thread, under the watch of the job."""
        _is_quick.set(is_quick)
        with watch(self):
            self.check()
            return work()

    async def wait(self, awaited: asyncio.Future[R]) -> R:
        """Wait for something, or raise an error when the job is cancelled."""
        end = asyncio.ensure_future(self._end.wait())
        both: set[asyncio.Future[object]] = {awaited, end}  # type: ignore[arg-type]
        try:
            while not awaited.done() and not self._is_cancelled:
                await asyncio.wait(both, timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
                if self._has_left():
                    self.cancel()
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            end.cancel()
            if not awaited.done():
                awaited.cancel()
        if awaited.done() and not awaited.cancelled():
            return awaited.result()
        raise JobCancelledError


class Lane:
    """Runs jobs one after the other in one thread, while a few others wait."""

    def __init__(self, thread: ThreadPoolExecutor, limit: int, is_quick: bool) -> None:
        self._thread, self._limit, self._is_quick = thread, limit, is_quick
        self._waiting: list[Job] = []
        self._turn = asyncio.Lock()

    async def run(self, job: Job, work: Callable[[], R]) -> R:
        """Run a job when its turn comes."""
        if len(self._waiting) >= self._limit:
            raise WhenceError("The page is busy: too many requests wait. Try again in a minute.")
        await self._wait_for_turn(job)
        context, loop = copy_context(), asyncio.get_running_loop()
        computed = self._thread.submit(context.run, job.run, work, self._is_quick)

        def end_turn(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the page was closed in between
                loop.call_soon_threadsafe(self._turn.release)

        computed.add_done_callback(end_turn)
        return await job.wait(asyncio.wrap_future(computed))

    async def _wait_for_turn(self, job: Job) -> None:
        self._waiting.append(job)
        if self._turn.locked():
            job.show_place(len(self._waiting))
        turn = asyncio.ensure_future(self._turn.acquire())
        try:
            await job.wait(turn)
        except BaseException:
            if turn.done() and not turn.cancelled():  # it came together with the cancellation
                self._turn.release()
            raise
        finally:
            self._waiting.remove(job)
            for place, other in enumerate(self._waiting, 1):
                other.show_place(place)


class Lanes:
    """The quick and the slow lane of one page; in each, `limit` requests may wait."""

    def __init__(self, limit: int) -> None:
        self._quick, self._slow = Lane(_QUICK, limit, True), Lane(_SLOW, limit, False)
        self._jobs: set[Job] = set()

    async def run(self, job: Job, work: Callable[[], R]) -> R:
        """Run a job: in the quick lane, or in the slow one if it turns out to be slow."""
        self._jobs.add(job)
        try:
            with contextlib.suppress(SlowWorkError):
                return await self._quick.run(job, work)
            return await self._slow.run(job, work)
        finally:
            self._jobs.discard(job)

    def cancel(self, visitor: str | None = None) -> None:
        """Cancel all jobs of a visitor; of all visitors if none is named."""
        for job in list(self._jobs):
            if visitor in (None, job.visitor):
                job.cancel()
