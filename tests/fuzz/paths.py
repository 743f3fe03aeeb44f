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
from whence.engine.compiled import padding, program

PATHS = ("plain", "chunks", "blocks", "segments", "compiled", "fused")
"""Chunks of attention maps, blocks that are called again, segments of one pass that is run again,
programs of recorded operators, and these as they are rearranged to be fused for a GPU."""

_NO_BOUND, _PLENTY, _NOTHING = math.inf, 2.0**50, 0.0
_COMPILED = ("compiled", "fused")
_BOUNDS = {"blocks": (_PLENTY, _NOTHING), "segments": (_NOTHING, _NO_BOUND)}


@contextmanager
def take_path(path: str) -> Iterator[None]:
    """Let all explanations take a path, as far as they can."""
    if path == "chunks":
        with mock.patch.object(batching, "_SHARE_OF_A_MAP", _NOTHING):
            yield
    elif path in _BOUNDS:
        record = eager.record_request

        def record_in_bounds(request: Any, guard: Any, *args: Any) -> Any:
            stand_in = args[-1] if len(args) > 2 else None
            return record(request, guard, _NO_BOUND, args[1], *_BOUNDS[path], stand_in)

        with mock.patch.object(eager, "record_request", record_in_bounds):
            yield
    elif path == "fused":
        changes = [
            mock.patch.object(program, "_is_for_gpu", return_value=True),
            mock.patch.object(program, "compile_graph", lambda graph, _: graph),
            mock.patch.object(padding, "_LARGEST_SHARE", _NO_BOUND),
        ]
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change)
            yield
    else:
        yield


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
