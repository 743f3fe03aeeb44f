"""Times of two checkouts of whence, in one run.

    python benchmarks/before_after.py ../old-checkout --size tiny --batch 1 8

Both run their own `benchmarks/engine.py` in turns, or this checkout's with `--same-script`, with
the options given. The fastest round counts; the ratio is the time of this checkout divided by that
of the other. On a busy machine the last column tells more: the median of the ratios of turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]


def run_engine(
    checkout: Path, options: list[str], scripts: Path
) -> dict[tuple[str, int, str], float]:
    """Run the benchmark on a checkout; milliseconds by device, batch and row."""
    script = scripts / "benchmarks" / "engine.py"
    if "--compile" not in script.read_text():
        options = ["--fast" if option == "--compile" else option for option in options]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "rows.json")
        command = [sys.executable, str(script), *options, "--json", str(result)]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(result.read_text())
    return {(row["device"], row["batch"], row["what"]): row["milliseconds"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=3, help="how often each runs")
    parser.add_argument("--same-script", action="store_true", help="run this engine.py on both")
    arguments, options = parser.parse_known_args()
    turns: list[list[dict[tuple[str, int, str], float]]] = []
    for _ in range(arguments.turns):
        turns.append(
            [
                run_engine(checkout, options, HERE if arguments.same_script else checkout)
                for checkout in (arguments.old, HERE)
            ]
        )
    print(f"`{' '.join(options)}`\n")
    print("| device | batch | what | before, ms | after, ms | ratio | median of turns |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for row in turns[0][0]:
        before, after = (min(turn[number][row] for turn in turns) for number in (0, 1))
        median = statistics.median(new[row] / old[row] for old, new in turns)
        print(
            f"| {' | '.join(map(str, row))} | {before:.2f} | {after:.2f} | {after / before:.3f} "
            f"| {median:.3f} |"
        )


if __name__ == "__main__":
    main()
