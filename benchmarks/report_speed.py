"""How many photos a second `whence report` puts on a page.

    python benchmarks/report_speed.py photos/ --model ./my-vit --methods whence,gae --repeats 5

The whole command but for its start: photos are read, explained and measured, and the page is
written; the model is loaded before each time. A first page, of one photo, is not counted. To
measure another checkout, set PYTHONPATH to its src folder.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from whence.inputs import expand
from whence.methods import parse_methods
from whence.pipeline import ExplainSettings
from whence.report.build import ReportRequest, build_report


def main() -> None:
    options = parse_options()
    sources = expand([options.photos])
    how = ExplainSettings(
        tuple(parse_methods(options.methods)), model=options.model, device=options.device
    )
    walls, cpus = [], []
    with tempfile.TemporaryDirectory() as folder:
        request = ReportRequest(
            how, Path(folder) / "page.html", faithfulness=not options.no_faithfulness, force=True
        )
        build_report(request, sources[:1])
        for _ in range(options.repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            entries = build_report(request, sources)
            walls.append((time.perf_counter() - wall) / len(entries))
            cpus.append((time.process_time() - cpu) / len(entries))
    speeds = [1 / one for one in walls]
    print(f"{len(sources)} photos, {options.repeats} times, {torch.get_num_threads()} threads")
    print(f"photos a second: {format_spread(speeds)}")
    print(f"seconds of CPU time a photo: {format_spread(cpus)}")


def format_spread(values: list[float]) -> str:
    """Median, and the range of all."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", help="a folder")
    parser.add_argument("--model", help="the embedded one if left out")
    parser.add_argument("--methods", default="whence")
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-faithfulness", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
