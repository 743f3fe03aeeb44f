"""Processes that measure a checkout of whence, one round at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .rounds import Group, Key, WarmGroup

BENCHMARKS = Path(__file__).parents[1]
READY, ROUND, ROWS = "ready", "round", "rows"


class Worker:
    """A script of this checkout in a process of its own, with the source of some checkout.

    Args:
        checkout: Whose `src` is measured.
        script: A file of `benchmarks` that answers lines of its input by lines of JSON.
        options: What it is called with.
    """

    def __init__(self, checkout: Path, script: str, options: Sequence[str]) -> None:
        paths = [str(checkout.resolve() / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, str(BENCHMARKS / script), *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> Any:
        """What the process answers next."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("A checkout could not be measured; its error is above.")
        return json.loads(line)

    def ask(self, request: str) -> Any:
        """Send a line, and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self.read()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def take_turns(workers: Sequence[Worker], request: str, rounds: int) -> list[list[Any]]:
    """Ask all in each round, in an order that is turned round each time; answers by worker."""
    answers: list[list[Any]] = [[] for _ in workers]
    for number in range(rounds):
        order = list(zip(workers, answers, strict=True))
        for worker, own in order if number % 2 == 0 else order[::-1]:
            own.append(worker.ask(request))
    return answers


def answer_requests(groups: Iterator[Group]) -> None:
    """Measure a round of all groups for each line of the input, or tell the rows so far."""
    warm = [WarmGroup(group) for group in groups]
    times: list[dict[Key, list[float]]] = [{key: [] for key in one.group.runs} for one in warm]
    print(json.dumps(READY), flush=True)
    for line in sys.stdin:
        if line.strip() == ROWS:
            rows = [row for one, of in zip(warm, times, strict=True) for row in one.make_rows(of)]
            print(json.dumps(rows), flush=True)
            continue
        for one, of in zip(warm, times, strict=True):
            for key, milliseconds in one.measure_round().items():
                of[key].append(milliseconds)
        print(json.dumps(READY), flush=True)
