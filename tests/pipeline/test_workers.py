"""Jobs in processes beside this one."""

import gc
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import whence
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

    def make(function, count=2, ahead=2, get_ready=os.getpid):
        started.append(Workers(function, count, ahead, get_ready))
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


def describe_process(job: object) -> tuple[str, bool, int]:
    """Where whence was imported from, whether it draws at once, and what is kept from searches."""
    return str(whence.__file__), "whence.pipeline.results" in sys.modules, gc.get_freeze_count()


def test_processes_are_copies_that_have_imported_what_drawing_needs(start):
    before = dict(os.environ)
    ((_, (_, is_imported, kept)),) = start(describe_process).run([0])
    assert is_imported
    assert kept > 10_000
    assert dict(os.environ) == before


DECOY = """
import sys
sys.path.insert(0, {source!r})
from whence.pipeline.workers import Workers

def find_whence(job):
    import whence
    return whence.__file__

if __name__ == "__main__":
    workers = Workers(find_whence, 1, 0, None)
    print([found for _, found in workers.run([0])][0])
    workers.finish()
"""


def test_processes_import_the_same_whence_as_the_first_one(tmp_path):
    """Another one lies in the folder where the program runs, and before it on the path."""
    other = tmp_path / "whence"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    source = Path(whence.__file__).parent.parent
    program = tmp_path / "program.py"
    program.write_text(DECOY.format(source=str(source)))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == Path(whence.__file__)
