"""Time and peak memory of an explanation beside a plain forward, in one run.

    python benchmarks/engine.py --size tiny --batch 1 8 32

The model is a ViT of transformers, or a BERT with texts of 128 tokens, with random weights, which
cost as much as trained ones. All variants take turns within each round, so that a busy machine
slows all of them. The fastest round counts. Memory is the peak beyond model and inputs: on a GPU of
allocated memory, on a CPU of the resident set.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from whence import Explainer
from whence.tracing import record
from whence.version import __version__

SIZES = {
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
STATM = Path("/proc/self/statm")
PAGE = 4096


def build_model(options: argparse.Namespace) -> torch.nn.Module:
    """A model of 12 layers with random weights."""
    sizes = {"num_hidden_layers": 12, "num_labels": 1000, **SIZES[options.size]}
    if options.family == "bert":
        return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def make_inputs(batch: int, device: torch.device, family: str) -> dict[str, torch.Tensor]:
    """Photos of 224 x 224 pixels, or texts of 128 tokens."""
    if family == "bert":
        return {"input_ids": torch.randint(5, 30000, (batch, 128), device=device)}
    return {"pixel_values": torch.randn(batch, 3, 224, 224, device=device)}


def list_variants(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], options: argparse.Namespace
) -> dict[str, Callable[[], Any]]:
    """List the functions to measure, by the names of their rows."""
    ((name, main),) = inputs.items()
    classes = torch.zeros(len(main), 1, dtype=torch.long, device=main.device)
    low_precision = options.precision == "bfloat16"

    def forward() -> Any:
        device = main.device.type
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=low_precision):
            return model(**inputs)

    def forward_and_gradient() -> Any:
        trace = record(model, (), inputs, name)
        return trace.read(classes, [site.weights for site in trace.sites])

    def explain_by(method: str, **request: Any) -> Callable[[], Any]:
        request = {"method": method, "memory": options.memory, **(request or {"target": 0})}
        # One explainer a row: it keeps its compiled programs.
        explainer = Explainer(model, precision=options.precision)
        compiled: list[str] = []

        def run() -> Any:
            if options.compile and not compiled:
                explainer.compile(inputs, **request)
                compiled.append(method)
            return explainer.explain(inputs, **request)

        return run

    every = {
        "forward": forward,
        "forward + gradient at the attention maps": forward_and_gradient,
        "whence": explain_by("whence"),
        "rollout": explain_by("rollout"),
        "gae": explain_by("gae"),
        "attnlrp": explain_by("attnlrp"),
        "lrp": explain_by("lrp"),
        "tiba, stable": explain_by("tiba"),
        "tiba, reference": explain_by("tiba", target=0, rules="reference"),
        "tiba, stable, 10 classes": explain_by("tiba", classes=list(range(10))),
    }
    names = ["forward", *(options.only or list(every)[1:])]
    return {name: every[name] for name in names}


def measure_seconds(run: Callable[[], Any], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def release_memory() -> None:
    """Give freed memory back to the system, so that the next peak shows."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def measure_peak_memory(run: Callable[[], Any], device: torch.device) -> float | None:
    """Measure the peak of memory in a run beyond the start, in bytes; None if unknown."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    if not STATM.exists():
        return None
    release_memory()
    done, sizes = threading.Event(), [read_resident_bytes()]

    def watch() -> None:
        while not done.wait(0.001):
            sizes.append(read_resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return max(sizes) - sizes[0]


def read_resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * PAGE


def measure_on_request(device: torch.device, options: argparse.Namespace) -> None:
    """Measure one round of all rows for each line of the standard input, for `before_after.py`.

    A line of JSON answers each: milliseconds by batch and row.
    """
    model, runs = build_model(options).to(device).eval(), {}
    for batch in options.batch:
        listed = list_variants(model, make_inputs(batch, device, options.family), options)
        runs |= {f"{batch} | {name}": run for name, run in listed.items()}
    for run in [*runs.values()] * (2 if options.compile else 1):
        run()
    print("ready", flush=True)
    for _ in sys.stdin:
        times = {row: measure_seconds(run, device) * 1e3 for row, run in runs.items()}
        print(json.dumps(times), flush=True)


def measure_batch(
    model: torch.nn.Module, batch: int, device: torch.device, options: argparse.Namespace
) -> list[dict]:
    runs = list_variants(model, make_inputs(batch, device, options.family), options)

    def warm(run: Callable[[], Any]) -> Callable[[], Any]:
        # The first call compiles; the last is like all later ones.
        return lambda: [run() for _ in range(2 if options.compile else 1)]

    memory = {name: measure_peak_memory(warm(run), device) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            times[name].append(measure_seconds(run, device))
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


def format_table(rows: list[dict]) -> str:
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
    parser.add_argument("--family", choices=("vit", "bert"), default="vit")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", help="default: cpu, then cuda where there is one")
    parser.add_argument("--precision", choices=("tf32", "bfloat16"), help="of matrix products")
    parser.add_argument("--compile", action="store_true", help="compile the explanations")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows, by name")
    parser.add_argument("--memory", type=float, help="gibibytes that an explanation may keep")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--on-request", action="store_true", help="a round for each line of stdin")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
    devices = [options.device] if options.device else ["cpu"]
    if not options.device and torch.cuda.is_available():
        devices.append("cuda")
    if options.on_request:
        measure_on_request(torch.device(options.device or "cpu"), options)
        return
    shown = "BERT of 12 layers, the width of a ViT-{}" if options.family == "bert" else "ViT-{}/16"
    everything = []
    for name in devices:
        device = torch.device(name)
        model = build_model(options).to(device).eval()
        on = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
        print(
            f"\n{shown.format(options.size)}, products in {options.precision or 'float32'}, {name} "
            f"({on}, {torch.get_num_threads()} threads){', compiled' * options.compile}, "
            f"whence {__version__}, torch {torch.__version__}\n"
        )
        batches = (measure_batch(model, batch, device, options) for batch in options.batch)
        rows = [row for batch in batches for row in batch]
        print(format_table(rows), flush=True)
        everything += [{"device": name, "on": on, **row} for row in rows]
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
