"""Time and peak memory of an explanation beside a plain forward, in one run.

    python benchmarks/engine.py --size tiny --batch 1 8 32

The model is a ViT of transformers with random weights, which cost as much as trained ones. All
variants take turns within each round, so that a busy machine slows all of them; what is reported is
the fastest of all rounds. Memory is what a variant needs beyond model and inputs: on a GPU what the
allocator handed out, on a CPU how far the resident set grew.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from whence import Explainer
from whence.tracing.trace import trace
from whence.version import __version__

SIZES = {
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
STATM = Path("/proc/self/statm")
PAGE = 4096


def variants(
    model: torch.nn.Module, pixels: torch.Tensor, options: argparse.Namespace
) -> dict[str, Callable[[], Any]]:
    """What is measured."""
    classes = torch.zeros(len(pixels), 1, dtype=torch.long, device=pixels.device)
    coarse = options.precision == "bfloat16"

    def forward() -> Any:
        with torch.no_grad(), torch.autocast(pixels.device.type, torch.bfloat16, enabled=coarse):
            return model(pixel_values=pixels)

    def forward_and_gradient() -> Any:
        return trace(model, (), {"pixel_values": pixels}, "pixel_values").gradient(classes)

    def by(method: str, **request: Any) -> Callable[[], Any]:
        request = {"method": method, "memory": options.memory, **(request or {"target": 0})}
        # Each has one of its own, which keeps what it compiled.
        explainer = Explainer(model, fast=options.fast, precision=options.precision)
        return lambda: explainer.explain({"pixel_values": pixels}, **request)

    found = {
        "forward": forward,
        "forward + gradient at the attention maps": forward_and_gradient,
        "whence": by("whence"),
        "rollout": by("rollout"),
        "gae": by("gae"),
        "attnlrp": by("attnlrp"),
        "lrp": by("lrp"),
        "tiba, stable": by("tiba"),
        "tiba, reference": by("tiba", target=0, rules="reference"),
        "tiba, stable, 10 classes": by("tiba", classes=list(range(10))),
    }
    wanted = ["forward", *(options.only or list(found)[1:])]
    return {name: found[name] for name in wanted}


def timed(run: Callable[[], Any], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def released() -> None:
    """Give freed memory back to the system, so that the next peak is seen."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak_memory(run: Callable[[], Any], device: torch.device) -> float | None:
    """Bytes needed at the peak of a run, beyond what was in use before; None if unknown."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    if not STATM.exists():
        return None
    released()
    done, sizes = threading.Event(), [resident()]

    def watch() -> None:
        while not done.wait(0.001):
            sizes.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return max(sizes) - sizes[0]


def resident() -> int:
    return int(STATM.read_text().split()[1]) * PAGE


def measure(
    model: torch.nn.Module, batch: int, device: torch.device, options: argparse.Namespace
) -> list[dict]:
    pixels = torch.randn(batch, 3, 224, 224, device=device)
    runs = variants(model, pixels, options)

    def warm(run: Callable[[], Any]) -> Callable[[], Any]:
        # The second or third call compiles, the one after it is like all that will follow.
        return lambda: [run() for _ in range(4 if options.fast else 1)]

    memory = {name: peak_memory(warm(run), device) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            times[name].append(timed(run, device))
    forward = min(times["forward"])
    return [
        {
            "batch": batch,
            "what": name,
            "milliseconds": min(seconds) * 1e3,
            "milliseconds an image": min(seconds) * 1e3 / batch,
            "forwards": min(seconds) / forward,
            "peak MB": None if memory[name] is None else memory[name] / 1e6,
        }
        for name, seconds in times.items()
    ]


def table(rows: list[dict]) -> str:
    lines = [
        "| batch | what | ms | ms an image | forwards | peak MB |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        peak = "?" if row["peak MB"] is None else f"{row['peak MB']:.0f}"
        lines.append(
            f"| {row['batch']} | {row['what']} | {row['milliseconds']:.1f} "
            f"| {row['milliseconds an image']:.2f} | {row['forwards']:.2f} | {peak} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", help="default: cpu, then cuda where there is one")
    parser.add_argument("--precision", choices=("tf32", "bfloat16"), help="of matrix products")
    parser.add_argument("--fast", action="store_true", help="what is compiled and run again")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows, by name")
    parser.add_argument("--memory", type=float, help="gibibytes that an explanation may keep")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
    devices = [options.device] if options.device else ["cpu"]
    if not options.device and torch.cuda.is_available():
        devices.append("cuda")
    config = transformers.ViTConfig(num_hidden_layers=12, num_labels=1000, **SIZES[options.size])
    everything = []
    for name in devices:
        device = torch.device(name)
        model = transformers.ViTForImageClassification(config).to(device).eval()
        on = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
        print(
            f"\nViT-{options.size}/16 at 224, products in {options.precision or 'float32'}, {name} "
            f"({on}, {torch.get_num_threads()} threads){', fast' * options.fast}, whence "
            f"{__version__}, "
            f"torch {torch.__version__}\n"
        )
        rows = [row for batch in options.batch for row in measure(model, batch, device, options)]
        print(table(rows), flush=True)
        everything += [{"device": name, "on": on, **row} for row in rows]
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
