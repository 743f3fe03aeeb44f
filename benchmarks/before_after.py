"""Times of two checkouts of whence, in one run.

    python benchmarks/before_after.py ../old-checkout --only plain --batch 1 8 --rounds 15

Two processes run this checkout's `benchmarks/speed.py` with the options given, one with the source
of each checkout, and take turns round by round, so that a busy machine slows both. A ratio is the
time of this checkout divided by that of the other in the same round; its median over all rounds is
shown, and its spread. The ratio of the plain forward, which is the same code in both, shows how
much chance there is in the others.
"""

import argparse
from pathlib import Path
from typing import Any

from timing.runs import Run, read_commits
from timing.tables import LEGEND, format_comparison
from timing.workers import ROUND, ROWS, Worker, take_turns

HERE = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--only", nargs="+", default=["plain"], metavar="SECTION")
    parser.add_argument("--rounds", type=int, default=15, help="how many each measures")
    parser.add_argument("--json", type=Path, help="also write the figures of both to this file")
    arguments, options = parser.parse_known_args()
    run = Run.start()
    checkouts = {"before": arguments.old, "after": HERE}
    run.versions["commit"] = read_commits(checkouts)
    run.rows = measure_both(checkouts, [*options, "--only", *arguments.only], arguments.rounds)
    if arguments.json:
        run.save(arguments.json)
    print(f"{run.describe()}, {arguments.rounds} rounds\n\n{LEGEND}\n")
    print(format_comparison(run.rows))


def measure_both(
    checkouts: dict[str, Path], options: list[str], rounds: int
) -> list[dict[str, Any]]:
    """Rows of both checkouts, which are variants of each other."""
    workers: list[Worker] = []
    try:
        for checkout in checkouts.values():
            workers.append(Worker(checkout, "speed.py", [*options, "--on-request"]))
            workers[-1].read()  # one at a time, so that each has the machine while it compiles
        take_turns(workers, ROUND, rounds)
        by_worker = [worker.ask(ROWS) for worker in workers]
    finally:
        for worker in workers:
            worker.close()
    rows = []
    for variant, own in zip(checkouts, by_worker, strict=True):
        for row in own:
            path = {"path": row["variant"]} if row["section"] == "compiled" else {}
            rows.append({**row, "setting": row["setting"] | path, "variant": variant})
    return rows


if __name__ == "__main__":
    main()
