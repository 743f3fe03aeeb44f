"""Measure what the checks of every result cost.

    python benchmarks/checks.py --width 192 --methods whence tiba lrp --device cpu

Explains a random photo again and again, and prints the median time of an explanation, the time that
its checks took of it, and the time of an explanation without them, in turns. The model is a ViT of
transformers with random weights. The structure of the model, which methods that read tokens find
anyway, is not counted. With --verify, dear checks are measured too.
"""

import argparse
import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import transformers

from whence import Explainer
from whence.engine import checks
from whence.tracing.graph import find_layers

MEASURE_TRACE = checks.measure_trace


class Stopwatch:
    """Adds up the time that functions take."""

    def __init__(self, device: str) -> None:
        self.seconds = 0.0
        self._synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def time(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is added."""

        def timed(*args: Any, **options: Any) -> Any:
            if function is MEASURE_TRACE:
                find_layers(args[1].trace)
            self._synchronize()  # what was asked of a GPU before is not its own
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._synchronize()
                self.seconds += time.perf_counter() - start

        return timed


@contextlib.contextmanager
def replace_checks(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """While this is entered, the functions that measure and judge are changed ones."""
    names = ("measure_trace", "measure_scores", "measure_logits")
    with contextlib.ExitStack() as stack:
        for name in names:
            changed = change(getattr(checks, name))
            stack.enter_context(mock.patch.object(checks, name, changed))
        stack.enter_context(mock.patch("whence.explainer.judge", change(checks.judge)))
        yield


def skip(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does nothing."""
    return lambda *_: [] if function is checks.judge else {}


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
    explainer = Explainer(model, compile=False)
    pixels = torch.randn(options.batch, 3, 224, 224, device=options.device)
    for method in options.methods:
        request = {"method": method, "verify": options.verify}
        whole, without, own = [], [], []
        for _ in range(options.repeats + 1):
            watch = Stopwatch(options.device)
            explain = Stopwatch(options.device)
            with replace_checks(watch.time):
                gc.collect()
                explain.time(explainer.explain)(pixels, **request)
            whole.append(explain.seconds)
            own.append(watch.seconds)
            explain = Stopwatch(options.device)
            with replace_checks(skip):
                gc.collect()
                explain.time(explainer.explain)(pixels, **request)
            without.append(explain.seconds)
        # The first of each has to warm up.
        total, plain, part = (statistics.median(t[1:]) * 1e3 for t in (whole, without, own))
        print(
            f"{method:20} {total:8.2f} ms, of which checks {part:6.2f} ms ({part / total:.1%}); "
            f"without them {plain:8.2f} ms"
        )


if __name__ == "__main__":
    main()
