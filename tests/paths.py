"""The ways on which an explanation is computed: plain, recorded, and fused by torch's compiler."""

import shutil
from typing import Any

import pytest
from torch import nn

from whence import Explainer, Explanation, Layout

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler here")
PATHS = [
    "plain",
    "recorded",
    pytest.param("fused", marks=(compiler, pytest.mark.slow)),  # takes a C++ compiler seconds
]


def explain_on(
    path: str, model: nn.Module, inputs: Any, *, layout: Layout | None = None, **request: Any
) -> Explanation:
    """Explain on one of the paths, and on no other."""
    explainer = Explainer(model, layout=layout, compile=path != "plain")
    if path == "fused":
        explainer.compile(inputs, **request)
    result = explainer.explain(inputs, **request)
    programs = list(explainer._compiled._programs.values())
    assert len(programs) == (path != "plain")
    for program in programs:
        assert program is not None, "it was not compiled"
        assert (program.recorded is None) == (path == "fused")
    return result
