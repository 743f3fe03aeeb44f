"""Two lanes: a slow request does not hold up a quick one, and any can be cancelled."""

import asyncio
import threading

import pytest

from whence import WhenceError
from whence._util.progress import bar
from whence.web.lanes import Job, JobCancelledError, Lanes, Pace, enter_slow_lane


class Visitor:
    """Someone who waits for a job; `shown` is what the page tells meanwhile."""

    def __init__(self, name="ada"):
        self.name, self.shown, self.has_left = name, [], False

    def make_job(self):
        return Job(self.name, lambda *what: self.shown.append(what), lambda: self.has_left)

    def start(self, lanes, work):
        return asyncio.ensure_future(lanes.run(self.make_job(), work))


class SlowWork:
    """Slow work of many steps; each waits until it may go on."""

    def __init__(self):
        self.begun, self.go, self.ended = (threading.Event() for _ in range(3))

    def __call__(self):
        enter_slow_lane()
        self.begun.set()
        try:
            with bar("covering", 1000) as advance:
                for _ in range(1000):
                    self.go.wait(0.02)
                    advance(1)
        finally:
            self.ended.set()
        return "slow"


async def wait_for(event):
    assert await asyncio.to_thread(event.wait, 20)


def test_quick_work_is_done_while_slow_work_runs():
    async def run():
        lanes, slow = Lanes(4), SlowWork()
        running = Visitor().start(lanes, slow)
        await wait_for(slow.begun)
        assert await Visitor("ben").start(lanes, lambda: threading.current_thread().name)
        assert not running.done()
        slow.go.set()
        return await running

    assert asyncio.run(run()) == "slow"


def test_each_lane_has_one_thread():
    names = []

    def work(is_slow):
        if is_slow:
            enter_slow_lane()
        names.append(threading.current_thread().name)

    async def run():
        lanes = Lanes(20)
        jobs = [Visitor().start(lanes, lambda n=n: work(n % 2 == 0)) for n in range(10)]
        await asyncio.gather(*jobs)

    asyncio.run(run())
    assert sorted(names) == ["whence quick_0"] * 5 + ["whence slow_0"] * 5


def test_slow_work_tells_how_far_it_is():
    visitor, slow = Visitor(), SlowWork()
    slow.go.set()

    async def run():
        await visitor.start(Lanes(4), slow)

    asyncio.run(run())
    assert visitor.shown[0] == ("covering", (0, 1000), "steps")
    assert visitor.shown[-1] == ("covering", (1000, 1000), "steps")


def test_who_waits_is_told_how_many_come_first():
    ben, cleo, slow = Visitor("ben"), Visitor("cleo"), SlowWork()

    async def run():
        lanes = Lanes(4)
        jobs = [Visitor().start(lanes, slow)]
        await wait_for(slow.begun)
        for visitor in (ben, cleo):
            jobs.append(visitor.start(lanes, enter_slow_lane))
            while not visitor.shown:
                await asyncio.sleep(0.01)
        slow.go.set()
        await asyncio.gather(*jobs)

    asyncio.run(run())
    one, two = (None, (1, None), "request comes first"), (None, (2, None), "requests come first")
    assert ben.shown == [one]
    assert cleo.shown == [two, one]


@pytest.mark.parametrize("how", ["cancel", "leave", "end of the task"])
def test_a_cancelled_job_stops_and_frees_its_lane(how):
    async def run():
        visitor, lanes, slow = Visitor(), Lanes(4), SlowWork()
        running = visitor.start(lanes, slow)
        await wait_for(slow.begun)
        others = Visitor("ben").start(lanes, enter_slow_lane)
        if how == "cancel":
            lanes.cancel("ada")
        elif how == "leave":
            visitor.has_left = True
        else:
            running.cancel()
        with pytest.raises((JobCancelledError, asyncio.CancelledError)):
            await running
        await wait_for(slow.ended)
        await others  # whose job is another's
        assert not slow.go.is_set()

    asyncio.run(run())


def test_a_job_that_waits_is_cancelled_at_once():
    async def run():
        lanes, slow, done = Lanes(4), SlowWork(), []
        first = Visitor().start(lanes, slow)
        await wait_for(slow.begun)

        def work():
            enter_slow_lane()
            done.append(1)

        ben = Visitor("ben")
        waiting = ben.start(lanes, work)
        while not ben.shown:
            await asyncio.sleep(0.01)
        lanes.cancel("ben")
        with pytest.raises(JobCancelledError):
            await waiting
        assert not first.done()
        slow.go.set()
        assert await first == "slow"
        assert done == []

    asyncio.run(run())


@pytest.mark.parametrize("steps", range(8))
def test_a_task_that_ends_at_any_moment_frees_its_lane(steps):
    async def run():
        lanes = Lanes(4)
        running = Visitor().start(lanes, lambda: "first")
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return await asyncio.wait_for(Visitor("ben").start(lanes, lambda: "next"), 5)

    assert asyncio.run(run()) == "next"


def test_a_full_lane_refuses_and_the_other_does_not():
    async def run():
        lanes, slow = Lanes(1), SlowWork()
        jobs = [Visitor().start(lanes, slow)]
        await wait_for(slow.begun)
        ben = Visitor("ben")
        jobs.append(ben.start(lanes, enter_slow_lane))
        while not ben.shown:
            await asyncio.sleep(0.01)
        with pytest.raises(WhenceError, match="busy"):
            await Visitor("cleo").start(lanes, enter_slow_lane)
        assert await Visitor("cleo").start(lanes, lambda: "quick") == "quick"
        slow.go.set()
        await asyncio.gather(*jobs)

    asyncio.run(run())


def test_errors_of_work_reach_the_visitor():
    def work():
        raise WhenceError("No such class.")

    async def run():
        await Visitor().start(Lanes(1), work)

    with pytest.raises(WhenceError, match="No such class"):
        asyncio.run(run())


def test_work_that_took_long_is_slow_the_next_time(monkeypatch):
    pace, threads = Pace(), []
    monkeypatch.setattr("whence.web.lanes._QUICK_SECONDS", 0.0)

    def work():
        with pace.measure("a large model"):
            threads.append(threading.current_thread().name)
            sum(range(1000))

    async def run():
        lanes = Lanes(1)
        await Visitor().start(lanes, work)
        await Visitor().start(lanes, work)

    asyncio.run(run())
    assert threads == ["whence quick_0", "whence slow_0"]
