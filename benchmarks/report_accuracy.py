"""How far the report's faithfulness of photos is from that with all steps in full precision.

Without `--precision`, curves are measured as the report measures them on this processor.

    python benchmarks/report_accuracy.py photos/ --model ./my-vit --methods whence,gae,rollout
    python benchmarks/report_accuracy.py photos/ --precision bfloat16 --every 2 --first 1

Maps are those in full precision, so that the same pixels are deleted. A point is one of the score,
which lies between -90 and 90.
"""

import argparse

import torch
from PIL import Image

from whence.faithfulness import measure, measure_photos
from whence.faithfulness.precision import can_use_float16
from whence.inputs import expand
from whence.methods import parse_methods
from whence.models import LoadedModel, load


def main() -> None:
    options = parse_options()
    plain = load(options.model, "image", device=options.device)
    quick = load(options.model, "image", device=options.device, precision=options.precision)
    runs = count_rows(quick)
    paths = expand(options.photos)[options.first :: options.every][: options.limit]
    distances = []
    for source in paths:
        content = source.read()
        assert isinstance(content, Image.Image)
        prepared = plain.prepare([content])
        explanations = {
            one.label: plain.explain(prepared, method=one.name, **one.options)
            for one in parse_methods(options.methods)
        }
        (found,) = measure_photos(quick, [(prepared, explanations)], chunk_size=8)
        exact = measure(plain, prepared, explanations, draws=0)
        distances += [
            one.score - other.score for one, other in zip(found.curves, exact.curves, strict=True)
        ]
    moved = torch.tensor(distances).abs()
    precision = "float16" if can_use_float16(quick) else options.precision or "full"
    print(f"{len(paths)} photos, {options.methods}; precision: {precision}")
    print(f"steps run: {sum(runs) / len(distances):.1f} of 18 for each method")
    print(
        f"points from the score with all steps: mean {moved.mean():.3f}, "
        f"95 % below {moved.quantile(0.95):.3f}, max {moved.max():.3f}"
    )


def count_rows(loaded: LoadedModel) -> list[int]:
    """A list that gets the number of rows of each forward pass."""
    rows: list[int] = []
    loaded.model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return rows


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", nargs="+", help="files or a folder")
    parser.add_argument("--model", help="the embedded one if left out")
    parser.add_argument("--methods", default="whence,gae,rollout")
    parser.add_argument("--precision", help="bfloat16, or that of the report if left out")
    parser.add_argument("--device")
    parser.add_argument("--first", type=int, default=0, help="the first photo, counted from 0")
    parser.add_argument("--every", type=int, default=1, help="take each second photo with 2, …")
    parser.add_argument("--limit", type=int, default=60, help="how many photos")
    return parser.parse_args()


if __name__ == "__main__":
    main()
