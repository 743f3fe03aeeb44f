"""Where the time of an explanation goes: a profile grouped into stages by files."""

import pstats
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

RECORDER, MODEL = "recording: the recorder", "recording: the model's own forward"
RECORDED, PASSED = "recording: operations", "backward pass: operations"
OUTSIDE = "elsewhere"
# Beginnings of paths in the package; the first that fits counts.
STAGES = {
    "preparing the request": (
        *("explainer.py", "engine/request.py", "engine/batching.py", "engine/targets.py"),
        *("engine/rules.py", "inputs/", "targets/", "methods/registry.py", "methods/parsing.py"),
    ),
    "copying the model": ("tracing/stand_in.py",),
    MODEL: (),
    RECORDER: (
        *("tracing/record", "tracing/calls.py", "tracing/ids.py", "tracing/modules.py"),
        *("tracing/registration.py", "tracing/logits.py", "tracing/views.py"),
        *("tracing/segments.py", "tracing/intervention.py", "tracing/addresses.py"),
    ),
    RECORDED: (),
    "finding structure and layout": (
        *("tracing/graph/", "tracing/flow/", "tracing/mark", "tracing/mixing.py"),
        *("tracing/dependence.py", "tracing/gates.py", "layout/", "engine/layouts.py"),
    ),
    "checks": ("engine/checks.py", "tracing/coverage.py", "tracing/fingerprint.py"),
    "reading evidence": ("evidence/", "tracing/readings.py"),
    "backward pass: the walk": ("tracing/",),
    "backward pass: rules": ("rules/",),
    PASSED: (),
    "the method's formula": ("methods/",),
    "making the result": ("engine/", "explanation/", "layout/"),
    OUTSIDE: (),
}
# Code that works for whoever calls it.
SHARED = ("_util/", "tracing/ops/", "errors.py")
OPERATIONS = "tracing/ops/"
MODEL_FILES = ("/transformers/", "/torch/nn/modules/")

Function = tuple[str, int, str]


class Profile:
    """What cProfile saw of one call.

    Time of a function that works for whoever calls it (of torch, of Python, of helpers) counts for
    its callers, in the shares in which they called it. cProfile sees no operators of tensors
    (`a * b`) and no calls of autograd's nodes: these count as Python of the function they stand in.

    Args:
        stats: Of cProfile.
    """

    def __init__(self, stats: pstats.Stats) -> None:
        self._stats: Mapping[Function, Any] = stats.stats
        self._shares: dict[Function, dict[str, float]] = {}

    def list_stages(self) -> dict[str, dict[str, float]]:
        """Milliseconds of each stage: in Python, and in functions of torch."""
        stages = {name: {"python": 0.0, "torch": 0.0} for name in STAGES}
        for function, (_, _, own, _, callers) in self._stats.items():
            where = "torch" if is_of_torch(function) else "python"
            for stage, share in self._split(function, own, callers):
                stages[stage][where] += share * 1e3
        return stages

    def list_functions(self, count: int, by: str = "own") -> list[dict[str, Any]]:
        """The functions of whence with the most time: own, with the C code called, or inclusive."""
        own: dict[Function, float] = defaultdict(float)
        for function, (_, _, seconds, _, callers) in self._stats.items():
            if get_path(function) is not None:
                own[function] += seconds
            elif function[0] == "~":
                for caller, edge in callers.items():
                    own[caller] += edge[2]
        listed = [
            {
                "function": f"{get_path(function)}: {function[2]}",
                "calls": self._stats[function][1],
                "own": seconds * 1e3,
                "inclusive": self._stats[function][3] * 1e3,
            }
            for function, seconds in own.items()
            if get_path(function) is not None
        ]
        return sorted(listed, key=lambda one: -one[by])[:count]

    def _split(
        self, function: Function, seconds: float, callers: Mapping[Function, Any]
    ) -> Iterator[tuple[str, float]]:
        """A function's own time by stages."""
        if find_stage(function) is not None or not callers:
            for stage, share in self._find_shares(function, frozenset()).items():
                yield stage, seconds * share
            return
        for caller, edge in callers.items():
            for stage, share in self._find_shares(caller, frozenset({function})).items():
                yield _rename(function, stage), edge[2] * share

    def _find_shares(self, function: Function, above: frozenset[Function]) -> dict[str, float]:
        """Which stages a function works for."""
        stage = find_stage(function)
        if stage is not None:
            return {stage: 1.0}
        if function in self._shares:
            return self._shares[function]
        callers = {f: edge[3] for f, edge in self._stats[function][4].items() if f not in above}
        total = sum(callers.values())
        shares: dict[str, float] = defaultdict(float)
        for caller, seconds in callers.items():
            weight = seconds / total if total else 1 / len(callers)
            for name, share in self._find_shares(caller, above | {function}).items():
                shares[_rename(function, name)] += weight * share
        if not above:
            self._shares[function] = dict(shares)
        return dict(shares) if shares else {OUTSIDE: 1.0}


def get_path(function: Function) -> str | None:
    """A function's file within the package; None outside of it."""
    _, found, path = function[0].replace("\\", "/").rpartition("/src/whence/")
    return path if found else None


def find_stage(function: Function) -> str | None:
    """The stage that a file belongs to; None of code that works for its callers."""
    path = get_path(function)
    if path is None:
        return MODEL if any(part in function[0] for part in MODEL_FILES) else None
    if path.startswith(SHARED):
        return None
    return next((n for n, begins in STAGES.items() if path.startswith(begins or ("//",))), OUTSIDE)


def is_of_torch(function: Function) -> bool:
    """Whether it is compiled code of torch."""
    return function[0] == "~" and ("torch" in function[2] or function[2].endswith("method apply>"))


def _rename(function: Function, stage: str) -> str:
    if (get_path(function) or "").startswith(OPERATIONS):
        return RECORDED if stage.startswith("recording") else PASSED
    return stage
