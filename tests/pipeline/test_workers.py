"""Jobs in processes beside this one."""

import os
import pickle
import time

import pytest
import torch

from whence.errors import WhenceError
from whence.pipeline.workers import Workers, pack


def wait_and_tell(job: tuple[int, float]) -> tuple[int, int]:
    number, seconds = job
    time.sleep(seconds)
    return number, os.getpid()


def end_in_other_processes(job: tuple[int, int]) -> int:
    """Do a job only in the process that made it."""
    number, owner = job
    if os.getpid() != owner:
        os._exit(1)
    return number


def refuse(job: int) -> int:
    raise WhenceError(f"No {job}.")


def count_jobs(taken: list[int], count: int):
    for number in range(count):
        taken.append(number)
        yield number, 0.0


@pytest.fixture
def start():
    """Start workers, and end them after the test."""
    started = []

    def make(function, count=2, ahead=2, at_once=True):
        started.append(Workers(function, count, ahead, at_once))
        return started[-1]

    yield make
    for one in started:
        one.finish()


def test_results_come_in_the_order_of_jobs_from_other_processes(start):
    jobs = [(number, 0.2 if number % 3 == 0 else 0.0) for number in range(12)]
    found = list(start(wait_and_tell).run(jobs))
    assert [job for job, _ in found] == jobs
    assert [result[0] for _, result in found] == list(range(12))
    assert os.getpid() not in {process for _, (_, process) in found}


def test_a_bounded_number_of_jobs_is_taken_ahead(start):
    taken: list[int] = []
    results = start(wait_and_tell, count=1, ahead=3).run(count_jobs(taken, 100))
    for read in range(1, 20):
        next(results)
        assert len(taken) <= read + 1 + 3 + 1


def test_jobs_of_processes_that_ended_are_done_here(start):
    jobs = [(number, os.getpid()) for number in range(6)]
    assert [result for _, result in start(end_in_other_processes).run(jobs)] == list(range(6))


def test_an_error_of_a_job_is_raised_here(start):
    with pytest.raises(WhenceError, match=r"^No 0\.$"):
        list(start(refuse).run(range(3)))


def test_what_cannot_be_sent_is_done_here(start):
    results = start(len).run([[1, 2], [lambda: 1]])
    assert [length for _, length in results] == [2, 1]


def test_an_interruption_keeps_what_was_done(start):
    workers = start(wait_and_tell, count=2, ahead=10)

    def interrupt():
        yield from ((number, 0.0) for number in range(3))
        while not all(task.is_done for _, task in workers._pending):
            time.sleep(0.01)
        raise KeyboardInterrupt

    read = []
    with pytest.raises(KeyboardInterrupt):
        read.extend(job[0] for job, _ in workers.run(interrupt()))
    kept = [job[0] for job, _ in workers.finish()]
    assert sorted(set(read) | set(kept)) == [0, 1, 2]
    assert workers.finish() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_tensors_are_sent_as_they_are(dtype):
    whole = torch.arange(24).reshape(2, 3, 4).to(dtype)
    tensors = [whole, whole[1:], whole[..., 1], whole[0, 0, 0], whole[:0]]
    for one, again in zip(tensors, pickle.loads(pack(tensors)), strict=True):
        assert (one.dtype, one.shape) == (again.dtype, again.shape)
        assert torch.equal(one, again)
    # A part takes no more room than its own values.
    long = torch.zeros(100_000)
    assert len(pack(long[:10])) < 1000
