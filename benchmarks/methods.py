"""Time of every method beside a plain forward, in one run.

    python benchmarks/methods.py --size tiny --batch 1

The model is a ViT of transformers with random weights. All methods take turns within each round, so
that a busy machine slows all of them. The fastest round counts. Options are the defaults of each
method.
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from engine import SIZES, measure_seconds
from whence import Explainer, methods
from whence.version import __version__


def list_variants(model: torch.nn.Module, pixels: torch.Tensor, names: list[str]) -> dict[str, Any]:
    """List a plain forward, and an explanation with each method."""
    explainer = Explainer(model)

    def forward() -> None:
        with torch.no_grad():
            model(pixel_values=pixels)

    def explain_by(name: str) -> Callable[[], Any]:
        return lambda: explainer.explain({"pixel_values": pixels}, target=0, method=name)

    return {"forward": forward, **{name: explain_by(name) for name in names}}


def measure(
    runs: dict[str, Callable[[], Any]], rounds: int, device: torch.device, patience: float
) -> dict[str, float]:
    """Measure the fastest round, in seconds; runs slower than `patience` run once."""
    runs["forward"]()
    fastest = {name: measure_seconds(run, device) for name, run in runs.items()}
    for _ in range(rounds - 1):
        for name, run in runs.items():
            if fastest[name] < patience:
                fastest[name] = min(fastest[name], measure_seconds(run, device))
    return fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=5.0, help="seconds for a further round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", default=methods.available("image"), metavar="NAME")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    device = torch.device(options.device)
    config = transformers.ViTConfig(num_hidden_layers=12, num_labels=1000, **SIZES[options.size])
    model = transformers.ViTForImageClassification(config).to(device).eval()
    pixels = torch.randn(options.batch, 3, 224, 224, device=device)
    on = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    print(
        f"ViT-{options.size}/16 at 224, batch {options.batch}, float32, {device} ({on}, "
        f"{torch.get_num_threads()} threads), whence {__version__}, torch {torch.__version__}\n"
    )
    runs = list_variants(model, pixels, options.methods)
    fastest = measure(runs, options.rounds, device, options.patience)
    print("| method | ms | forwards | documented cost |\n| --- | ---: | ---: | --- |")
    for name, seconds in sorted(fastest.items(), key=lambda pair: pair[1]):
        documented = "1" if name == "forward" else methods.describe(name).cost
        forwards = seconds / fastest["forward"]
        print(f"| {name} | {seconds * 1e3:.1f} | {forwards:.1f} | {documented} |")
    if options.json:
        options.json.write_text(json.dumps(fastest, indent=1))


if __name__ == "__main__":
    main()
