"""How many photos a second `whence report` puts on a page.

    python benchmarks/report_speed.py photos/ --model ./my-vit --methods whence,gae --repeats 5
    python benchmarks/report_speed.py photos/ --methods whence,gae --before ../old-checkout

The whole command but for its start: photos are read, explained and measured, and the page is
written; the model is loaded before each time. A first page, of one photo, is not counted.

With `--before`, two checkouts take turns, each time in a process of its own, so that a busy machine
slows both; the command with its start is measured as well.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from whence.inputs import expand
from whence.methods import parse_methods
from whence.pipeline import ExplainSettings
from whence.report.build import ReportRequest, build_report

HERE = Path(__file__).parents[1]
# What is measured of one page: by what it is printed as.
SPEED, CPU, WHOLE = (
    "photos a second",
    "seconds of CPU time a photo",
    "photos a second, with the start",
)


def main() -> None:
    options = parse_options()
    print(f"{len(expand([options.photos]))} photos, {options.repeats} times")
    if options.before is None:
        print_figures(measure_here(options), options.json)
        return
    checkouts = {"before": options.before, "after": HERE}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(options.repeats):
        for name, checkout in checkouts.items():
            found[name].append(measure_checkout(checkout, options))
    for name, figures in found.items():
        print(f"{name}:")
        print_figures(figures)
    for what in (SPEED, CPU, WHOLE):
        pairs = zip(found["before"], found["after"], strict=True)
        ratios = [after[what] / before[what] for before, after in pairs]
        print(f"after / before, {what}: {format_spread(ratios)}")


def measure_here(options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure pages in this process."""
    sources = expand([options.photos])
    how = ExplainSettings(
        tuple(parse_methods(options.methods)),
        model=options.model,
        device=options.device,
        precision=options.precision,
    )
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        request = ReportRequest(
            how, Path(folder) / "page.html", faithfulness=not options.no_faithfulness, force=True
        )
        build_report(request, sources[:1])
        for _ in range(options.repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            count = len(build_report(request, sources))
            speed = count / (time.perf_counter() - wall)
            figures.append({SPEED: speed, CPU: (time.process_time() - cpu) / count})
    return figures


def measure_checkout(checkout: Path, options: argparse.Namespace) -> dict[str, float]:
    """Measure one page of a checkout, and its whole command."""
    named = {"--model": options.model, "--device": options.device, "--methods": options.methods}
    named["--precision"] = options.precision
    arguments = [options.photos] + [
        part for name, value in named.items() if value is not None for part in (name, value)
    ]
    if options.no_faithfulness:
        arguments.append("--no-faithfulness")
    paths = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    script = [sys.executable, __file__, *arguments, "--repeats", "1", "--json"]
    printed = subprocess.run(script, env=paths, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])
    command = [sys.executable, "-c", "from whence.cli.app import app; app()", "report", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--quiet", "--out", f"{folder}/page.html"]
        start = time.perf_counter()
        subprocess.run(command, env=paths, check=True, capture_output=True)
        figures[WHOLE] = len(expand([options.photos])) / (time.perf_counter() - start)
    return figures


def print_figures(figures: list[dict[str, float]], as_json: bool = False) -> None:
    """Print the median and the range of each figure, or the first page's as JSON."""
    if as_json:
        print(json.dumps(figures[0]))
        return
    for what in figures[0]:
        print(f"{what}: {format_spread([one[what] for one in figures])}")


def format_spread(values: list[float]) -> str:
    """Median, and the range of all."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", help="a folder")
    parser.add_argument("--model", help="the embedded one if left out")
    parser.add_argument("--methods", default="whence")
    parser.add_argument("--device")
    parser.add_argument("--precision", help="as for whence report")
    parser.add_argument("--before", type=Path, help="another checkout, to take turns with")
    parser.add_argument("--json", action="store_true", help="print the first page's figures so")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-faithfulness", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
