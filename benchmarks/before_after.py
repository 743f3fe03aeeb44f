"""Times of two checkouts of whence, in one run.

    python benchmarks/before_after.py ../old-checkout --size tiny --batch 1 8

Both run their own `benchmarks/engine.py` in turns, with the options given; the fastest round
counts. The last column is the time of this checkout divided by that of the other.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]


def run_engine(checkout: Path, options: list[str]) -> dict[tuple[str, int, str], float]:
    """Run the benchmark of a checkout; milliseconds by device, batch and row."""
    script = checkout / "benchmarks" / "engine.py"
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
    arguments, options = parser.parse_known_args()
    best: dict[Path, dict[tuple[str, int, str], float]] = {arguments.old: {}, HERE: {}}
    for _ in range(arguments.turns):
        for checkout, times in best.items():
            for row, milliseconds in run_engine(checkout, options).items():
                times[row] = min(milliseconds, times.get(row, milliseconds))
    print(f"`{' '.join(options)}`\n")
    print("| device | batch | what | before, ms | after, ms | ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for row, before in best[arguments.old].items():
        after = best[HERE][row]
        print(
            f"| {' | '.join(map(str, row))} | {before:.2f} | {after:.2f} | {after / before:.3f} |"
        )


if __name__ == "__main__":
    main()
