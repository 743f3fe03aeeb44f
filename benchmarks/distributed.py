"""What Ray costs and gains on this machine, and what grows with the number of inputs.

    python benchmarks/distributed.py scaling --photos 2000 --rounds 3
    python benchmarks/distributed.py rows --rows 1000000 --actors 2

`scaling` explains the same photos by `whence explain` in one process, by Ray with one actor and
with two, and in two processes that know nothing of each other, which is what the machine can give.
All have one thread for torch. Speed counts from the first finished part to the last, so
that neither starts of processes nor loading count. CPU seconds are those of all processes, by what
they do: they tell where time goes also on a machine that is not quiet.

`rows` explains tiny photos in a Parquet table with a tiny random ViT, kills the command at half
way, starts it again, and notes what grows: the driver's memory, files, the time to go on.
"""

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import transformers
from PIL import Image

from whence.demo import PHOTO

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
KINDS = {
    "BlockExplainer": "actors that explain",
    "CheckpointFilter": "filter of finished rows",
    "ray::": "tasks that read, divide and write",
    "default_worker": "tasks that read, divide and write",
    "raylet": "raylet",
    "gcs_server": "GCS",
    "whence.cli": "driver",
}


class Watcher:
    """Notes CPU time and memory of a process and of all that it starts."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.cpu: dict[int, float] = {}
        self.kinds: dict[int, str] = {}
        self.memory: Counter[str] = Counter()  # the largest resident set of a process, by kind
        self.driver: list[tuple[float, int]] = []  # seconds since the start, bytes
        self.start = time.monotonic()

    def look(self) -> None:
        """Take note of all processes."""
        parents, found = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                resident = int((folder / "statm").read_text().split()[1]) * PAGE
            except OSError:
                continue
            number = int(folder.name)
            parents[number] = int(fields[1])
            found[number] = ((int(fields[11]) + int(fields[12])) / TICKS, command, resident)
        for number, (seconds, command, resident) in found.items():
            if not self._is_below(number, parents):
                continue
            kind = next((name for key, name in KINDS.items() if key in command), "other")
            if kind == "actors that explain" or number not in self.kinds:
                self.kinds[number] = kind
            self.cpu[number] = seconds
            self.memory[kind] = max(self.memory[kind], resident)
            if number == self.process:
                self.driver.append((time.monotonic() - self.start, resident))

    def _is_below(self, number: int, parents: dict[int, int]) -> bool:
        while number not in (0, 1, self.process):
            number = parents.get(number, 0)
        return number == self.process

    def sum_cpu(self) -> dict[str, float]:
        """Sum up CPU seconds by kind."""
        total: Counter[str] = Counter()
        for number, seconds in self.cpu.items():
            total[self.kinds[number]] += seconds
        return {kind: round(seconds, 1) for kind, seconds in total.most_common()}


def main() -> None:
    options = parse_options()
    measure = {"scaling": measure_scaling, "rows": measure_rows}[options.what]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measure(Path(folder), options), indent=2))


def measure_scaling(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the speed in one and two processes, and by Ray with one and two actors."""
    photos, model = make_photos(folder / "photos", options.photos), options.model
    halves = [make_photos(folder / f"half{n}", options.photos // 2) for n in range(2)]
    common = ["--method", options.method, *(["--model", model] if model else [])]
    common += ["--part-rows", str(options.part_rows), "--batch", str(options.batch)]
    local = ["--format", "parquet", "--threads", "1"]
    ways = {
        "one process": [[str(photos), *local]],
        "Ray, 1 actor": [[str(photos), "--ray", "--actors", "1"]],
        "Ray, 2 actors": [[str(photos), "--ray", "--actors", "2"]],
        "two processes": [[str(half), *local] for half in halves],
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, commands in ways.items():
            outs = [folder / f"out{n}" for n in range(len(commands))]
            with ThreadPoolExecutor(len(commands)) as pool:
                runs = list(pool.map(run, ([*one, *common] for one in commands), outs))
            found[name].append(
                {
                    "photos a second": round(measure_speed(*outs), 2),
                    "seconds in all": round(max(seconds for _, seconds, _ in runs), 1),
                    "cpu seconds": [watcher.sum_cpu() for watcher, _, _ in runs],
                }
            )
            print(name, json.dumps(found[name][-1]), file=sys.stderr, flush=True)
            for out in outs:
                shutil.rmtree(out)
    return {"photos": options.photos, "ways": found}


def measure_rows(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Explain many tiny photos, kill the driver at half way, and go on."""
    table = make_table(folder / "table", options.rows)
    model = save_tiny_model(folder / "model")
    command = [str(table), "--model", str(model), "--method", options.method]
    command += ["--batch", str(options.batch), "--part-rows", str(options.part_rows)]
    command += ["--scores", "float16", "--ray", "--actors", str(options.actors)]
    out = folder / "out"
    half = options.rows // options.part_rows // 2
    first, seconds, told = run(command, out, kill_at=half)
    between = count_parts(out)
    second, more, told = run(command, out)
    new = sorted(one.stat().st_mtime for one in list_checkpoints(out))[between:]
    parts = list(out.glob("*.parquet"))
    return {
        "rows": sum(pq.read_metadata(part).num_rows for part in parts),
        "printed": told,
        "seconds until killed": round(seconds, 1),
        "rows at the kill": between * options.part_rows,
        "seconds of the second run": round(more, 1),
        "seconds until its first part": round(new[0] - second.began, 1) if new else None,
        "files": {"parts": len(parts), "checkpoints": len(list_checkpoints(out))},
        "bytes": {
            "inputs": sum(one.stat().st_size for one in table.iterdir()),
            "parts": sum(part.stat().st_size for part in parts),
            "checkpoints": sum(one.stat().st_size for one in list_checkpoints(out)),
        },
        "driver's memory, MiB by seconds": [thin(one.driver) for one in (first, second)],
        "largest process, MiB": {k: v >> 20 for k, v in (first.memory | second.memory).items()},
        "cpu seconds": [one.sum_cpu() for one in (first, second)],
    }


def run(command: list[str], out: Path, kill_at: int | None = None) -> tuple[Any, float, str]:
    """Run `whence explain`; kill it when it has written so many parts."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "whence.cli", "explain", *command, "--out", str(out)]
    printed = out.with_suffix(".log")
    start = time.monotonic()
    with printed.open("w") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment)
        watcher: Any = Watcher(process.pid)
        watcher.began = time.time()
        while process.poll() is None:
            watcher.look()
            if kill_at is not None and count_parts(out) >= kill_at:
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.5)
    text = printed.read_text()
    if process.returncode not in (0, 1, -signal.SIGKILL):
        raise SystemExit(text)
    return watcher, time.monotonic() - start, text


def list_checkpoints(out: Path) -> list[Path]:
    folder = out / "_whence" / "checkpoint"
    found = folder.glob("*.parquet") if folder.is_dir() else ()
    return [one for one in found if not one.name.endswith(".pending.parquet")]


def count_parts(out: Path) -> int:
    return len(list_checkpoints(out))


def measure_speed(*outs: Path) -> float:
    """Rows a second between the first finished part and the last."""
    checkpoints = [one for out in outs for one in list_checkpoints(out)]
    ends = sorted((one.stat().st_mtime, pq.read_metadata(one).num_rows) for one in checkpoints)
    return sum(rows for _, rows in ends[1:]) / (ends[-1][0] - ends[0][0])


def thin(values: list[tuple[float, int]], count: int = 12) -> list[tuple[int, int]]:
    """A dozen of the values, evenly chosen."""
    chosen = np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)
    return [(round(values[one][0]), values[one][1] >> 20) for one in chosen]


def make_photos(folder: Path, count: int) -> Path:
    """Write photos of 500 by 375, all different."""
    folder.mkdir()
    original = Image.open(PHOTO).convert("RGB").resize((640, 480))
    for number in range(count):
        left, top = number * 7 % 140, number * 11 % 105
        original.crop((left, top, left + 500, top + 375)).save(folder / f"{number:06}.jpg")
    return folder


def make_table(folder: Path, rows: int, files: int = 8) -> Path:
    """Write Parquet files of PNGs of 16 by 16, a thousand different ones again and again."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    contents = []
    for _ in range(1000):
        file = io.BytesIO()
        pixels = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((16, 16)).save(file, "PNG")
        contents.append(file.getvalue())
    for number in range(files):
        mine = range(number, rows, files)
        with pq.ParquetWriter(
            folder / f"{number}.parquet", pa.schema([("id", pa.string()), ("image", pa.binary())])
        ) as writer:
            for start in range(0, len(mine), 10_000):
                some = mine[start : start + 10_000]
                ids = [f"photo-{one:08}" for one in some]
                writer.write_table(
                    pa.table({"id": ids, "image": [contents[one % 1000] for one in some]})
                )
    return folder


def save_tiny_model(folder: Path) -> Path:
    """Save a ViT of two layers for photos of 16 by 16."""
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        id2label={0: "a", 1: "b"},
        label2id={"a": 0, "b": 1},
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["scaling", "rows"])
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="as whence explain takes it; the embedded one if left out")
    parser.add_argument("--method", default="whence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--part-rows", type=int, default=32)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--folder", help="for the inputs and results, while it runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
