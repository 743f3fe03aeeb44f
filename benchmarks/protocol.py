"""Photos a second of the perturbation protocol, beside a naive loop of one photo at a time.

    python benchmarks/protocol.py --data imagenet --photos 32

Without --model, a ViT-Ti with random weights, which cost as much as trained ones. Both explain the
predicted class by the same method and run the model on the same 18 perturbed copies of each photo;
the loop does so one copy after the other. The areas of both are compared.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import transformers

from whence import Explainer, benchmark, datasets, models
from whence.benchmark.photos import prepare_photo
from whence.metrics.curves import area_under_curve
from whence.metrics.deletion import FRACTIONS
from whence.models.image_preprocessing import PixelScale


def random_vit(folder: Path) -> Path:
    config = transformers.ViTConfig(
        hidden_size=192, num_attention_heads=3, intermediate_size=768, num_labels=1000
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 224, "width": 224},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@torch.no_grad()
def naively(loaded, seen, name: str) -> list[tuple[float, float]]:
    """Areas under the probability of the predicted class, highest and lowest first."""
    scale, areas = PixelScale.from_model(loaded), []
    black = scale.to_model(torch.zeros(1, 3, 1, 1, device=loaded.device))
    for one in seen:
        pixels = one.pixels[None].to(loaded.device)
        result = Explainer(loaded.model).explain(pixels, method=name)
        scores, target = result.heatmap().flatten(), result.target
        clean = float(result.logits.softmax(1)[0, target])
        found = []
        for descending in (True, False):
            order, curve = scores.sort(descending=descending, stable=True).indices, [clean]
            for fraction in FRACTIONS:
                hidden = torch.zeros_like(scores, dtype=torch.bool)
                hidden[order[: int(fraction * len(scores) + 1e-9)]] = True
                changed = torch.where(hidden.view(pixels.shape[-2:]), black, pixels)
                curve.append(float(loaded.model(changed).logits.softmax(1)[0, target]))
            found.append(float(area_under_curve(torch.tensor(curve), (0.0, *FRACTIONS))))
        areas.append(tuple(found))
    return areas


def together(loaded, seen, name: str, batch: int) -> list[tuple[float, float]]:
    protocol, (method,) = (
        benchmark.build_protocol("perturbation", {}),
        benchmark.parse_methods(name),
    )
    rows = [
        row
        for start in range(0, len(seen), batch)
        for row in protocol.compute_rows(loaded, seen[start : start + batch], method)
    ]
    kinds = ("positive_predicted_probability_auc", "negative_predicted_probability_auc")
    return [tuple(row[kind] for kind in kinds) for row in rows]


def timed(run, device: str):
    run()  # warms up
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model")
    parser.add_argument("--method", default="tiba")
    parser.add_argument("--photos", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.model or str(random_vit(Path(folder)))
        loaded = models.load(place, "image", device=options.device)
    data = datasets.load(options.data)
    seen = [prepare_photo(loaded, data.read(name)) for name in data.list_names()[: options.photos]]
    # Only the predicted class, which the loop explains.
    seen = [type(one)(**{**vars(one), "sample": unlabelled(one.sample)}) for one in seen]
    ours, quick = timed(
        lambda: together(loaded, seen, options.method, options.batch), options.device
    )
    plain, slow = timed(lambda: naively(loaded, seen, options.method), options.device)
    apart = (torch.tensor(ours) - torch.tensor(plain)).abs().max()
    print(
        f"{options.method}, {len(seen)} photos, {options.device}: {len(seen) / quick:.1f} photos a "
        f"second in batches of {options.batch}, {len(seen) / slow:.1f} one by one: "
        f"{slow / quick:.1f} times as fast; areas differ by at most {float(apart):.1e}"
    )


def unlabelled(sample):
    return type(sample)(sample.name, sample.content)


if __name__ == "__main__":
    main()
