"""Paths through the engine: what bounds of memory or a program make of the same request.

Each has to give the scores of the plain path. Models of the fuzzer are small, so that no bound
would be reached by itself: bounds are set to nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from tests.fuzz.models import Case
from whence import Explainer
from whence.engine import batching, eager
from whence.engine.compiled import making, padding, program, run

PATHS = ("plain", "chunks", "blocks", "segments", "compiled", "fused")
"""Chunks of attention maps, blocks that are called again, segments of one pass that is run again,
programs of recorded operators, and these as they are rearranged to be fused for a GPU."""

_NO_BOUND, _PLENTY, _NOTHING, _LEAST = math.inf, 2.0**50, 0.0, 2.0**-50
_COMPILED = ("compiled", "fused")
_BOUNDS = {"blocks": (_PLENTY, _NOTHING), "segments": (_NOTHING, _NO_BOUND)}


@contextmanager
def take_path(path: str) -> Iterator[list[Any]]:
    """Let all explanations take a path, as far as they can; gives the results of programs."""
    by_programs: list[Any] = []
    with ExitStack() as stack:
        for target, name, value in _list_changes(path, by_programs):
            stack.enter_context(mock.patch.object(target, name, value))
        yield by_programs


def _list_changes(path: str, by_programs: list[Any]) -> Iterator[tuple[Any, str, Any]]:
    """Names in modules with what stands there on a path."""
    if path == "chunks":
        yield batching, "_SHARE_OF_A_MAP", _LEAST
    if path in _BOUNDS:
        record = eager.record_request

        def record_in_bounds(request: Any, guard: Any, *args: Any) -> Any:
            stand_in = args[-1] if len(args) > 2 else None
            return record(request, guard, _NO_BOUND, args[1], *_BOUNDS[path], stand_in)

        yield eager, "record_request", record_in_bounds
    if path in _COMPILED:
        confirm = run._confirm

        def note_result(request: Any, bound: Any, output: Any, *args: Any) -> Any:
            if bool(output.valid):
                by_programs.append(output)
            return confirm(request, bound, output, *args)

        yield run, "_confirm", note_result
    if path == "fused":
        yield program, "_is_for_gpu", lambda _: True
        yield program, "_MOST_OPERATORS", _NO_BOUND
        yield program, "compile_graph", lambda graph, _: graph
        yield making, "precompile_header", lambda: None
        yield padding, "_LARGEST_SHARE", _NO_BOUND


def make_explainer(case: Case, path: str) -> Explainer:
    return Explainer(case.model, output=case.output, compile=path in _COMPILED)


def prepare(explainer: Explainer, case: Case, method: str, path: str) -> None:
    """Let a program be recorded of other values, and of other classes, where a path has one."""
    if path not in _COMPILED:
        return
    make = explainer.compile if path == "fused" else explainer.explain
    asked = {"classes": case.asked["classes"][::-1]} if "classes" in case.asked else {"target": 0}
    inputs = case.inputs
    others = {k: _vary(v) for k, v in inputs.items()} if isinstance(inputs, dict) else _vary(inputs)
    make(others, method=method, **asked)


def _vary(values: Tensor) -> Tensor:
    """Other numbers of one shape; token ids and masks of other samples."""
    return -values.flip(0) if values.is_floating_point() else values.flip(0)
