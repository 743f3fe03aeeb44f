"""Times of two checkouts of whence, in one run.

    python benchmarks/before_after.py ../old-checkout --family vit --batch 1 8

Two processes run this checkout's `benchmarks/engine.py` with the options given, one with the source
of each checkout, and take turns round by round, so that a busy machine slows both. A ratio is the
time of this checkout divided by that of the other in the same round; its median over all rounds is
shown, and the median of each time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]


class Worker:
    """A process that measures a checkout, one round at a time."""

    def __init__(self, checkout: Path, options: list[str]) -> None:
        script = HERE / "benchmarks" / "engine.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), *options, "--on-request"],
            env={**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_line(self) -> str:
        """What the process prints next."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("A checkout could not be measured; its error is above.")
        return line

    def measure(self) -> dict[str, float]:
        """Measure one round: milliseconds by batch and row."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return json.loads(self.read_line())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=15, help="how many rounds each measures")
    arguments, options = parser.parse_known_args()
    workers = [Worker(checkout, options) for checkout in (arguments.old, HERE)]
    try:
        for worker in workers:
            worker.read_line()
        turns = []
        for turn in range(arguments.turns):
            order = workers if turn % 2 == 0 else workers[::-1]
            pair = [worker.measure() for worker in order]
            turns.append(pair if turn % 2 == 0 else pair[::-1])
    finally:
        for worker in workers:
            worker.close()
    print(f"`{' '.join(options)}`, {arguments.turns} rounds\n")
    print("| batch | what | before, ms | after, ms | ratio |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for row in turns[0][0]:
        before, after = (statistics.median(turn[n][row] for turn in turns) for n in (0, 1))
        ratio = statistics.median(new[row] / old[row] for old, new in turns)
        print(f"| {row} | {before:.2f} | {after:.2f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
