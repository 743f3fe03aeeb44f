"""How the cost of an explanation grows with batch, tokens, layers and classes.

    python benchmarks/growth.py --size tiny

One of the four is varied at a time, from a ViT of 12 layers, one image of 224 x 224 and one class.
Models have random weights. A plain forward of the same model and batch takes turns with the
explanations, and the fastest round counts.
"""

import argparse
import platform
from collections.abc import Iterator
from typing import NamedTuple

import torch
import transformers

from engine import SIZES, measure_peak_memory, measure_seconds
from whence import Explainer
from whence.version import __version__


class Case(NamedTuple):
    """One measured model and batch."""

    batch: int = 1
    image: int = 224
    layers: int = 12
    classes: int = 1

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.image // 16) ** 2 + 1


AXES = {
    "batch": [Case(batch=n) for n in (1, 2, 4, 8, 16)],
    "tokens": [Case(image=n) for n in (112, 224, 320, 448)],
    "layers": [Case(layers=n) for n in (6, 12, 24)],
    "classes": [Case(classes=n) for n in (1, 2, 5, 10)],
}


def measure_row(case: Case, options: argparse.Namespace) -> Iterator[str]:
    """Yield the cells of a row: ms of a forward; ms, forwards and peak MB of each method."""
    config = transformers.ViTConfig(
        num_hidden_layers=case.layers,
        image_size=case.image,
        num_labels=1000,
        **SIZES[options.size],
    )
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config).to(device).eval()
    pixels = torch.randn(case.batch, 3, case.image, case.image, device=device)
    explainer = Explainer(model)
    classes = {"classes": list(range(case.classes))} if case.classes > 1 else {"target": 0}

    def forward() -> None:
        with torch.no_grad():
            model(pixel_values=pixels)

    def explain_by(method: str) -> None:
        explainer.explain({"pixel_values": pixels}, method=method, **classes)

    for method in options.methods if options.compile else ():
        explainer.compile({"pixel_values": pixels}, method=method, **classes)
    runs = {"": forward} | {name: lambda name=name: explain_by(name) for name in options.methods}
    for run in runs.values():
        run()
    memory = {name: measure_peak_memory(run, device) for name, run in runs.items()}
    fastest = dict.fromkeys(runs, float("inf"))
    for _ in range(options.rounds):
        for name, run in runs.items():
            fastest[name] = min(fastest[name], measure_seconds(run, device))
    yield f"{fastest[''] * 1e3:.0f}"
    for name in options.methods:
        peak = memory[name]
        yield f"{fastest[name] * 1e3:.0f}"
        yield f"{fastest[name] / fastest['']:.2f}"
        yield "?" if peak is None else f"{peak / 1e6:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--methods", nargs="+", default=["tiba", "whence"])
    parser.add_argument("--vary", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="compile the explanations")
    options = parser.parse_args()
    on = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(
        f"ViT-{options.size}/16, float32, {options.device} ({on}, {torch.get_num_threads()} "
        f"threads){', compiled' * options.compile}, whence {__version__}, torch {torch.__version__}"
    )
    columns = "".join(f" {name}: ms | forwards | peak MB |" for name in options.methods)
    for axis in options.vary:
        print(
            f"\n| {axis} | forward: ms |{columns}\n| ---: | ---: |{' ---: |' * columns.count('|')}"
        )
        for case in AXES[axis]:
            print(
                f"| {getattr(case, axis)} | {' | '.join(measure_row(case, options))} |", flush=True
            )


if __name__ == "__main__":
    main()
