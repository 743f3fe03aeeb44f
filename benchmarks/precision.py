"""How far scores in fewer bits are from those in float64, on photos of a folder.

    python benchmarks/precision.py val/*/*.JPEG --model ./vit-tiny --limit 6
    python benchmarks/precision.py val/*/*.JPEG --model ./vit-tiny --device cuda

For each method and precision: the norm of the scores' error over the norm of the scores, of all
photos together; in brackets the lowest correlation of a photo's map with that in float64. The class
is the one that the model predicts in float64.
"""

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from whence import Explainer
from whence.models import load

METHODS = ("tiba", "whence", "gae", "attnlrp")


def main() -> None:
    options = parse_options()
    loaded = load(options.model, device=options.device)
    chosen = options.photos[:: options.every][: options.limit]
    pixels = loaded.prepare([Image.open(path).convert("RGB") for path in chosen]).inputs.double()
    wide = copy.deepcopy(loaded.model).double()
    with torch.no_grad():
        classes = wide(pixels).logits.argmax(1).tolist()
    print(f"{len(pixels)} photos, {options.device}\n\n| | {' | '.join(options.methods)} |")
    print("| --- |" + " ---: |" * len(options.methods))
    expected = {name: explain(wide, pixels, classes, name) for name in options.methods}
    for title, model, precision in list_precisions(loaded.model, options.device):
        cells = []
        for name in options.methods:
            inputs = pixels.to(next(model.parameters()).dtype)
            found = explain(model, inputs, classes, name, precision)
            cells.append(compare(found, expected[name]))
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", nargs="+", type=Path)
    parser.add_argument("--model", required=True, help="a folder or a name, of transformers")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=1, help="take every so many photos")
    parser.add_argument("--limit", type=int, default=6)
    return parser.parse_args()


def list_precisions(model: nn.Module, device: str) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Titles of rows, each with a model and a precision of products."""
    yield "float32", model, None
    if device.startswith("cuda"):
        yield '`precision="tf32"`', model, "tf32"
    yield '`precision="bfloat16"`', model, "bfloat16"
    yield "the whole model in bfloat16", copy.deepcopy(model).bfloat16(), None


def explain(
    model: nn.Module, pixels: Tensor, classes: list[int], method: str, precision: str | None = None
) -> Tensor:
    """Scores, (photos, units), in float64."""
    explainer = Explainer(model, compile=False, precision=precision)
    scores = explainer.explain({"pixel_values": pixels}, target=classes, method=method).scores
    return scores.double().flatten(1)


def compare(found: Tensor, expected: Tensor) -> str:
    """The error, and the lowest correlation."""
    error = float((found - expected).norm() / expected.norm())
    pairs = zip(found, expected, strict=True)
    lowest = min(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs)
    return f"{error:.1e} ({lowest:.4f})"


if __name__ == "__main__":
    main()
