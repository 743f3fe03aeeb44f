"""A plain forward pass: nothing is recorded, and the model and its arguments are not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from whence.inputs.arguments import ModelArguments, is_text
from whence.tracing import copy_arguments
from whence.tracing.logits import read_logits


def run_plainly(
    stand_in: nn.Module, arguments: ModelArguments, output: Callable[[Any], Tensor] | None
) -> Tensor:
    """The logits of the main input, as a stand-in of the model computes them by itself."""
    args, kwargs = copy_arguments(arguments.args, arguments.kwargs)
    returned = stand_in(*args, **kwargs)
    if output is not None:
        return output(returned)
    return read_logits(returned, is_text(arguments.main_at, arguments.main)).values
