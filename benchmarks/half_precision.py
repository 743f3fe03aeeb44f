"""Rank correlation of scores in bfloat16 and float16 with those in float32, for every method.

    WHENCE_DATA=... python benchmarks/half_precision.py

Models: stories15M (the next token of generated stories), the embedded sentiment model, and a
ViT-Ti on photos. For each method the mean and the lowest Spearman correlation over inputs, of the
same targets: those of float32. Padding and tokens of no part of the input do not count.
"""

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from PIL import Image
from scipy.stats import spearmanr

from whence import Explainer, WhenceError
from whence import methods as all_methods
from whence.models import load

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Methods of many passes, with few of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 16},
    "smoothgrad": {"samples": 8},
    "rise": {"masks": 200},
}
LEFT_OUT = {"random", "search", "attention_flow", "vit_cx"}
SENTENCES = (
    "a gripping, funny and beautifully acted film",
    "the plot is thin and the jokes fall flat",
    "it never quite decides what it wants to be, but the lead is wonderful",
    "two hours that feel like four",
    "not a bad idea, only a badly told one",
    "an honest, warm and quietly moving story",
)
PROMPTS = ("Once upon a time", "One day, Lily and Tom", "Mia had a red ball")


class Case(NamedTuple):
    """A model with inputs: for each, what it is called with."""

    model: torch.nn.Module
    inputs: list[dict[str, torch.Tensor]]


def make_stories(data: Path) -> Case:
    folder = data / "stories15M"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    inputs = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            story = model.generate(ids, max_new_tokens=80, do_sample=False)
        inputs += [{"input_ids": story[:, :length]} for length in (40, 80)]
    return Case(model, inputs)


def make_sentiment(_: Path) -> Case:
    loaded = load(kind="text", device="cpu")
    inputs = [dict(loaded.prepare([one]).inputs) for one in SENTENCES]
    return Case(loaded.model.float().eval(), inputs)


def make_photos(data: Path) -> Case:
    loaded = load(data / "vit_tiny_in1k_hf", device="cpu")
    paths = sorted((data / "imagenet" / "val").glob("*/*"))
    chosen = paths[:: max(1, len(paths) // 6)][:6]
    photos = [loaded.prepare([Image.open(path).convert("RGB")]) for path in chosen]
    return Case(loaded.model.float().eval(), [{"pixel_values": one.inputs} for one in photos])


CASES: dict[str, Callable[[Path], Case]] = {
    "stories15M": make_stories,
    "sentiment": make_sentiment,
    "ViT-Ti": make_photos,
}


def explain(model: torch.nn.Module, dtype: torch.dtype, inputs: dict, **asked: Any) -> torch.Tensor:
    cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    return Explainer(model.to(dtype)).explain(cast, **asked)


def compare(case: Case, method: str) -> Iterator[tuple[str, float]]:
    """The rank correlation of each input, in each type."""
    asked = {"method": method, **OPTIONS.get(method, {})}
    expected = [explain(case.model, torch.float32, one, **asked) for one in case.inputs]
    for name, dtype in DTYPES.items():
        for inputs, result in zip(case.inputs, expected, strict=True):
            target = result.target if result.target.dim() == 1 else result.target[:, 0]
            found = explain(case.model, dtype, inputs, target=target.tolist(), **asked)
            pair = [one.scores.double().flatten().numpy() for one in (found, result)]
            same = bool((pair[0] == pair[0][0]).all() and (pair[1] == pair[1][0]).all())
            yield name, 1.0 if same else float(spearmanr(*pair).statistic)
    case.model.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = options.only or [m for m in all_methods.available("image") if m not in LEFT_OUT]
    rows = []
    for name in options.cases:
        case = CASES[name](Path(os.environ["WHENCE_DATA"]))
        for method in chosen:
            try:
                found = list(compare(case, method))
            except WhenceError as error:
                print(f"{name} {method}: {str(error)[:120]}", flush=True)
                case.model.float()
                continue
            row: dict[str, Any] = {"model": name, "method": method}
            for dtype in DTYPES:
                values = [value for of, value in found if of == dtype]
                row[dtype] = [sum(values) / len(values), min(values)]
            rows.append(row)
            figures = " | ".join(f"{mean:.4f} ({low:.4f})" for mean, low in map(row.get, DTYPES))
            print(f"| {name} | `{method}` | {figures} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
