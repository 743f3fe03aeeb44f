"""Measure what the checks of every result cost.

    python benchmarks/checks.py --width 192 --methods whence tiba lrp --device cpu

Explains the same random photo with and without checks, in turns, and prints the least time of each
and their ratio. The model is a ViT of transformers with random weights. With --verify, dear checks
are measured too.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator
from unittest import mock

import torch
import transformers

from whence import Explainer
from whence.engine import checks


@contextlib.contextmanager
def skip_checks() -> Iterator[None]:
    """While this is entered, nothing is measured or judged."""
    with (
        mock.patch.object(checks, "measure_trace", return_value={}),
        mock.patch.object(checks, "measure_scores", return_value={}),
        mock.patch.object(checks, "measure_logits", return_value={}),
        mock.patch("whence.explainer.judge", return_value=[]),
    ):
        yield


def measure_seconds(explainer: Explainer, pixels: torch.Tensor, **request: object) -> float:
    """The time of one explanation."""
    start = time.perf_counter()
    explainer.explain(pixels, **request)
    if pixels.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Print a line for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192, help="192 is ViT-Ti, 768 is ViT-B")
    parser.add_argument("--methods", nargs="+", default=["whence", "tiba", "lrp", "gae"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    config = transformers.ViTConfig(
        hidden_size=options.width,
        num_attention_heads=options.width // 64,
        intermediate_size=4 * options.width,
    )
    model = transformers.ViTForImageClassification(config).eval().to(options.device)
    explainer = Explainer(model)
    pixels = torch.randn(options.batch, 3, 224, 224, device=options.device)
    for method in options.methods:
        request = {"method": method, "verify": options.verify}
        measure_seconds(explainer, pixels, **request)
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.repeats):
            for checked in times:
                with contextlib.nullcontext() if checked else skip_checks():
                    times[checked].append(measure_seconds(explainer, pixels, **request))
        with_checks, without = min(times[True]), min(times[False])
        extra = with_checks / without - 1
        print(
            f"{method:20} with {with_checks * 1e3:8.2f} ms, without {without * 1e3:8.2f} ms, "
            f"checks {extra:+.1%}"
        )


if __name__ == "__main__":
    main()
