"""Where the time of a plain explanation goes, stage by stage.

    python benchmarks/profile_plain.py --method whence
    python benchmarks/profile_plain.py --method tiba --before ../old-checkout
    python benchmarks/profile_plain.py --size base --device cuda

The model is a ViT of 12 layers, so narrow that Python takes most of the time, or one of another
size. Stages are those of cProfile, which slows all that is Python: the first table has the same
calls without it. Kinds of operations in the backward pass are timed without cProfile; on a GPU
their times are those of Python, which launches kernels and does not wait for them. Profiles are
those of the fastest call. With ``--before``, two processes measure the two checkouts in turns.
"""

import argparse
import cProfile
import functools
import json
import pstats
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from timing import models
from timing.figures import divide_rounds, measure_spread
from timing.rounds import measure_seconds
from timing.runs import Run, read_commits
from timing.stages import Profile
from timing.tables import LEGEND, format_spread, write_table
from timing.workers import Worker, take_turns

HERE = Path(__file__).parents[1]
TIME, PROFILE, KINDS = "time", "profile", "kinds"
WALK = "the walk, and nodes of autograd's own"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="whence")
    parser.add_argument("--size", choices=(*models.SIZES, models.SMOKE), default=models.SMOKE)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15, help="without cProfile")
    parser.add_argument("--calls", type=int, default=5, help="with cProfile")
    parser.add_argument("--top", type=int, default=15, help="so many functions")
    parser.add_argument("--by", choices=("own", "inclusive"), default="own", help="their order")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--on-request", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.on_request:
        answer(options)
        return
    checkouts = {"before": options.before, "after": HERE} if options.before else {"now": HERE}
    words = [*sys.argv[1:], "--on-request"]
    workers: list[Worker] = []
    try:
        for checkout in checkouts.values():
            workers.append(Worker(checkout, Path(__file__).name, words))
            workers[-1].read()
        times = take_turns(workers, TIME, options.rounds)
        profiles = choose_fastest(take_turns(workers, PROFILE, options.calls))
        kinds = choose_fastest(take_turns(workers, KINDS, options.calls))
    finally:
        for worker in workers:
            worker.close()
    run = Run.start()
    run.versions["commit"] = read_commits(checkouts)
    names = list(checkouts)
    parts = [run.describe(), LEGEND, format_times(names, times, profiles)]
    parts += [format_stages(names, profiles), format_kinds(names, kinds)]
    parts += [format_functions(n, one) for n, one in zip(names, profiles, strict=True)]
    print("\n\n".join(parts))


def choose_fastest(answers: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each worker, the call that other work on the machine disturbed least."""
    return [min(own, key=lambda answer: answer["milliseconds"]) for own in answers]


# What a worker measures --------------------------------------------------------------------------


def answer(options: argparse.Namespace) -> None:
    """Answer each line of the input by a line of JSON."""
    from whence import Explainer

    device = torch.device(options.device)
    model = models.build_classifier(options.size, device, layers=options.layers)
    image = models.default_image(options.size)
    inputs = models.make_inputs(options.batch, device, image=image)
    explainer = Explainer(model, compile=False)
    runs: dict[str, Callable[[], Any]] = {
        "forward": lambda: models.run_forward(model, inputs),
        "forward + backward": lambda: models.run_backward(model, inputs),
        options.method: lambda: explainer.explain(inputs, target=0, method=options.method),
    }
    for run in [*runs.values()] * 3:
        run()
    print(json.dumps("ready"), flush=True)
    requests: dict[str, Callable[[], Any]] = {
        TIME: lambda: {name: measure_seconds(run, device) * 1e3 for name, run in runs.items()},
        PROFILE: lambda: profile(runs[options.method], device, options),
        KINDS: lambda: time_kinds(runs[options.method], device),
    }
    for line in sys.stdin:
        print(json.dumps(requests[line.strip()]()), flush=True)


def profile(
    run: Callable[[], Any], device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """One call under cProfile."""
    with cProfile.Profile() as profiler:
        seconds = measure_seconds(run, device)
    found = Profile(pstats.Stats(profiler))
    return {
        "milliseconds": seconds * 1e3,
        "stages": found.list_stages(),
        "functions": found.list_functions(options.top, options.by),
    }


def time_kinds(run: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Numbers and milliseconds of operations that values pass backward, by kind, of one call."""
    clock = KindClock()
    with clock.watch():
        seconds = measure_seconds(run, device)
    kinds = {kind: [clock.counts[kind], s * 1e3] for kind, s in clock.seconds.items()}
    return {"milliseconds": seconds * 1e3, "kinds": kinds}


class KindClock:
    """Times what values pass in the backward pass, the outermost call of an operation each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self._inside = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While on, operations are timed; a name that a checkout does not have is left out."""
        from whence.rules.ruleset import RuleSet
        from whence.tracing import trace
        from whence.tracing.ops.base import Operation

        with ExitStack() as stack:
            enter = stack.enter_context
            enter(patch.object(RuleSet, "propagate", self._time(RuleSet.propagate, 1)))
            for kind in list_subclasses(Operation):
                if "gradient" in vars(kind):
                    enter(patch.object(kind, "gradient", self._time(kind.gradient, 0)))
            walk = getattr(trace, "propagate_backward", None)
            if walk is not None:
                enter(patch.object(trace, "propagate_backward", self._time_walk(walk)))
            yield
            if walk is not None:
                self.seconds[WALK] -= sum(s for kind, s in self.seconds.items() if kind != WALK)

    def _time(self, function: Callable[..., Any], number: int) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any) -> Any:
            if self._inside:
                return function(*args)
            self._inside, start = True, time.perf_counter()
            try:
                return function(*args)
            finally:
                self._inside = False
                kind, name = args[number].kind, args[number].name
                kind = kind if kind == name else f"{kind} ({name})"
                self.seconds[kind] += time.perf_counter() - start
                self.counts[kind] += 1

        return timed

    def _time_walk(self, walk: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            steps = walk(*args, **kwargs)
            self.counts[WALK] += 1
            while True:
                start = time.perf_counter()
                step = next(steps, None)
                self.seconds[WALK] += time.perf_counter() - start
                if step is None:
                    return
                yield step

        return timed


def list_subclasses(kind: type) -> Iterator[type]:
    for inner in kind.__subclasses__():
        yield inner
        yield from list_subclasses(inner)


# Tables ------------------------------------------------------------------------------------------


def format_times(
    names: list[str], times: list[list[dict[str, float]]], profiles: list[dict[str, Any]]
) -> str:
    head, lines = ["", *(f"{name}: ms" for name in names), "ratio"], []
    for what in times[0][0]:
        each = [[answer[what] for answer in own] for own in times]
        cells = [f"{min(own):.2f}{format_spread(measure_spread(own))}" for own in each]
        ratio = ""
        if len(each) == 2:
            ratios = divide_rounds(each[1], each[0])
            ratio = f"{statistics.median(ratios):.3f}{format_spread(measure_spread(ratios))}"
        lines.append([what, *cells, ratio])
    lines.append(
        [f"{what}, under cProfile", *(f"{one['milliseconds']:.2f}" for one in profiles), ""]
    )
    return write_table(head, lines, texts=("",))


def format_stages(names: list[str], profiles: list[dict[str, Any]]) -> str:
    head = ["stage, under cProfile"]
    head += [f"{name}: {of}" for name in names for of in ("Python, ms", "torch, ms", "share")]
    lines = []
    totals = [sum(sum(one.values()) for one in of["stages"].values()) for of in profiles]
    for stage in profiles[0]["stages"]:
        line = [stage]
        for of, total in zip(profiles, totals, strict=True):
            python, compiled = of["stages"][stage]["python"], of["stages"][stage]["torch"]
            share = (python + compiled) / total
            line += [f"{python:.2f}", f"{compiled:.2f}", f"{share:.0%}"]
        lines.append(line)
    return write_table(head, lines, texts=head[:1])


def format_kinds(names: list[str], kinds: list[dict[str, Any]]) -> str:
    head = ["backward pass, without cProfile"]
    head += [f"{name}: {of}" for name in names for of in ("calls", "ms")]
    found = [one["kinds"] for one in kinds]
    every = dict.fromkeys(kind for one in found for kind in one)
    ordered = sorted(every, key=lambda kind: (kind == WALK, -found[-1].get(kind, [0, 0])[1]))
    lines = []
    for kind in ordered:
        counted = [one.get(kind, [0, 0]) for one in found]
        lines.append([kind, *(cell for n, ms in counted for cell in (str(n), f"{ms:.2f}"))])
    return write_table(head, lines, texts=head[:1])


def format_functions(name: str, profiled: dict[str, Any]) -> str:
    head = [f"{name}: functions, under cProfile", "calls", "own and its C calls, ms", "inclusive"]
    lines = [
        [f"`{one['function']}`", str(one["calls"]), f"{one['own']:.2f}", f"{one['inclusive']:.2f}"]
        for one in profiled["functions"]
    ]
    return write_table(head, lines, texts=head[:1])


if __name__ == "__main__":
    main()
