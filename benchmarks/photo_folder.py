"""Photos a second of `whence explain FOLDER`, and how busy the GPU is, beside a plain loop.

    python benchmarks/photo_folder.py --photos 1000 --size base --device cuda
    python benchmarks/photo_folder.py --photos 1000 --size base --device cuda --format jpg
    python benchmarks/photo_folder.py --photos 60 --size tiny --device cpu --loop 10

The photos are JPEG files of about 500 by 375, all of different sizes, or those of --folder; the
model is a ViT with random weights in a folder of transformers, which costs as much as a trained
one. The command runs in a Python of its own, from its start to its end: it reads, prepares,
explains and draws all photos, and writes their files. The loop does the same for one photo after
another, in this Python and with the model loaded.

The GPU's share of busy time is given twice: as `nvidia-smi` samples it, and as the time of all its
kernels, which torch's profiler measures over some batches, divided by the time of the run.
"Explaining" is the time from the first figure's file to the last one, "start" all before it. CPU
time is that of the first process, which keeps the GPU busy, and of all others, imports included.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from PIL import Image
from timing.models import SIZES
from timing.sections import RECURRING

from whence._util.cpus import count_cpus
from whence.demo import PHOTO
from whence.inputs.sources import Source
from whence.methods import MethodSpecification
from whence.models import LoadedModel, load
from whence.pipeline import BatchExplainer, ExplainSettings

COMMAND = "from whence.cli.app import app; app(prog_name='whence')"
SAMPLING = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms"]


@dataclass
class Run:
    """What was measured of a run."""

    photos: int
    seconds: float
    start: float  # seconds until the first figure
    explaining: float  # seconds from the first figure to the last
    cpu: tuple[float, float]  # seconds of CPU time of the first process, and of all others
    samples: list[float] = field(default_factory=list)  # percent that the GPU was busy
    kernels: float | None = None  # milliseconds of the GPU for each photo


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        photos = list_photos(options, work / "photos")
        model = save_model(options, work / "vit")
        report_machine(options, len(photos))
        loaded = load(model, device=options.device, precision=options.precision)
        one, many = (measure_kernels(loaded, photos, size) for size in (1, options.batch))
        rows = {}
        if options.loop:
            looped = photos[: options.loop]
            rows["loop"] = run_loop(loaded, looped, work / "loop", one, options.format)
        del loaded
        for number in range(options.rounds):
            run = run_command(options, photos[0].parent, model, work / f"out{number}", many)
            rows[f"whence explain, run {number + 1}"] = run
    report(rows)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="of photos, instead of made ones")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=16, help="default: 16, as of the command")
    parser.add_argument("--precision", default=None)
    parser.add_argument("--format", choices=("png", "jpg"), default="png", help="of figures")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--loop", type=int, default=100, help="photos of the plain loop; or 0")
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


def list_photos(options: argparse.Namespace, folder: Path) -> list[Path]:
    if options.folder is not None:
        return sorted(one for one in options.folder.iterdir() if one.suffix.lower() == ".jpg")
    folder.mkdir()
    cat = Image.open(PHOTO).convert("RGB")

    def make(number: int) -> Path:
        """Turn the photo, and give it a size of its own; upright ones are rarer."""
        width, height = 460 + number % 80, 345 + number // 80 % 60
        size = (height, width) if number % 4 == 3 else (width, height)
        path = folder / f"photo-{number:05}.jpg"
        cat.rotate(number % 23 - 11, Image.Resampling.BICUBIC).resize(size).save(path, quality=90)
        return path

    with ThreadPoolExecutor() as pool:
        return list(pool.map(make, range(options.photos)))


def save_model(options: argparse.Namespace, folder: Path) -> str:
    torch.manual_seed(0)
    config = transformers.ViTConfig(num_labels=1000, **SIZES[options.size])
    transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
    transformers.ViTImageProcessor().save_pretrained(folder)
    return str(folder)


def measure_kernels(loaded: LoadedModel, photos: list[Path], size: int) -> float | None:
    """Milliseconds that the GPU computes for a photo, in batches of a size; None without a GPU."""
    if torch.device(loaded.device).type != "cuda":
        return None
    settings = ExplainSettings((MethodSpecification("whence", "whence", {}, "stable"),), batch=size)
    explainer = BatchExplainer(settings, loaded, threads=4)
    count = 4 * size
    sources = [Source("image", path) for path in photos[:count]]
    for _ in range(RECURRING):
        list(explainer.explain_batches(sources))
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        list(explainer.explain_batches(sources))
        torch.cuda.synchronize()
    microseconds = sum(one.self_device_time_total for one in profile.key_averages())
    return microseconds / 1000 / len(sources)


def run_loop(
    loaded: LoadedModel, photos: list[Path], out: Path, kernels: float | None, form: str
) -> Run:
    """Explain photos one by one, and save what `whence explain` saves of each."""
    import whence

    out.mkdir()

    def explain_one(path: Path) -> None:
        explanation = whence.explain(path, model=loaded)
        explanation.save(out / f"{path.stem}.safetensors")
        explanation.plot(title=path.stem).save(out / f"{path.stem}.{form}")

    explain_one(photos[0])

    def explain_all() -> None:
        for path in photos:
            explain_one(path)

    return measure(lambda: run_here(explain_all), len(photos), out, kernels, form)


def run_command(
    options: argparse.Namespace, photos: Path, model: str, out: Path, kernels: float | None
) -> Run:
    arguments = ["explain", photos, "--model", model, "--device", options.device, "--quiet"]
    arguments += ["--batch", options.batch, "--format", options.format, "--out", out]
    arguments += ["--compile"] if options.compile else []
    arguments += ["--precision", options.precision] if options.precision else []
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    count = sum(one.suffix.lower() == ".jpg" for one in photos.iterdir())
    run = measure(lambda: run_processes(command), count, out, kernels, options.format)
    shutil.rmtree(out)
    return run


def run_processes(command: list[str]) -> tuple[float, float]:
    """Run a command; return the CPU time of its process, and of all that this one started."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # processes whose parent ends become children of this one
    first = subprocess.Popen(command, start_new_session=True)  # with a process group of its own
    own, others = 0.0, 0.0
    with suppress(ChildProcessError):  # until no process of the group is left
        while True:
            process, status, usage = os.wait4(-first.pid, 0)
            seconds = usage.ru_utime + usage.ru_stime
            if process != first.pid:
                others += seconds
                continue
            own = seconds
            if os.waitstatus_to_exitcode(status) != 0:
                raise SystemExit("The command failed.")
    return own, others


def run_here(work: Callable[[], object]) -> tuple[float, float]:
    """Do something in this process; return its CPU time."""
    start = time.process_time()
    work()
    return time.process_time() - start, 0.0


def measure(
    work: Callable[[], tuple[float, float]],
    count: int,
    out: Path,
    kernels: float | None,
    form: str,
) -> Run:
    """Measure work that returns its CPU time, and writes so many figures to a folder."""
    with sample_gpu() as samples:
        begin, start = time.time(), time.perf_counter()
        cpu = work()
        seconds = time.perf_counter() - start
    times = [one.stat().st_mtime for one in out.glob(f"*.{form}")]
    if len(times) != count:
        raise SystemExit(f"{len(times)} of {count} figures were written.")
    first, last = min(times), max(times)
    return Run(count, seconds, first - begin, last - first, cpu, list(samples), kernels)


@contextmanager
def sample_gpu() -> Iterator[list[float]]:
    """Collect how busy the GPU is, ten times a second; nothing where it cannot be asked."""
    samples: list[float] = []
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        yield samples
        return
    with subprocess.Popen([*SAMPLING, "100"], stdout=subprocess.PIPE, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip().isdigit():
                    samples.append(float(line))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield samples
        finally:
            process.terminate()
            reader.join()


def report_machine(options: argparse.Namespace, count: int) -> None:
    place = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    facts = {"device": place, "cpus": count_cpus(), "found": count}
    print(json.dumps({**versions, **facts}))
    print(json.dumps({name: str(value) for name, value in vars(options).items()}), flush=True)


def report(rows: dict[str, Run]) -> None:
    """Print a table: rates and shares over the whole run, and while photos were explained."""
    print(
        "| | photos | seconds | start, s | photos a second | while explaining | "
        "CPU of the first process, ms a photo | of others | kernels, ms a photo | "
        "busy by kernels | while explaining | busy by nvidia-smi | while explaining |"
    )
    print("| --- |" + " ---: |" * 12)
    for name, run in rows.items():
        rates = [run.photos / one if one else 0.0 for one in (run.seconds, run.explaining)]
        cells = [f"{run.photos}", f"{run.seconds:.1f}", f"{run.start:.1f}"]
        cells += [*(f"{rate:.1f}" for rate in rates)]
        cells += [f"{1000 * one / run.photos:.1f}" for one in run.cpu]
        if run.kernels is None:
            cells += ["", "", ""]
        else:
            shares = [f"{rate * run.kernels / 1000:.0%}" for rate in rates]
            cells += [f"{run.kernels:.2f}", *shares]
        busy = [n for n, sample in enumerate(run.samples) if sample > 0]
        during = run.samples[busy[0] : busy[-1] + 1] if busy else []
        cells += [f"{sum(one) / len(one):.0f}%" if one else "" for one in (run.samples, during)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
