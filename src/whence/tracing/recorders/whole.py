"""Modules and functions that are one operation for each tensor that they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence._util.torch_internals import (
    flatten_tree,
    name_single_node,
    unflatten_tree,
    without_torch_function,
)
from whence.errors import WhenceError
from whence.tracing.calls import TorchCall
from whence.tracing.ops.function import Function
from whence.tracing.ops.norms import Norm
from whence.tracing.ops.softmax import SOFTMAX
from whence.tracing.recorders.functions import count_mixed_dims, fits_kind
from whence.tracing.recording import Recording


def record_registered(recording: Recording, call: TorchCall, kind: str) -> Any:
    """Record a call of a torch function that a user registered."""
    function, inputs = call.as_function()
    check_registered(call.name, kind, inputs)
    mixed_dims, where = count_mixed_dims(call), recording.where()
    with without_torch_function():
        return record_whole(recording, kind, function, inputs, mixed_dims, call.name, where)


def check_registered(name: str, kind: str, inputs: list[Tensor]) -> None:
    """Refuse what is registered as a kind that takes fewer tensors.

    Raises:
        WhenceError: More tensors depend on the input than the kind takes.
    """
    if not fits_kind(kind, inputs):
        raise WhenceError(
            f"{name} is registered as '{kind}', which has one tensor that depends on the model's "
            f"input; here are {len(inputs)}. Register it as 'product', which gives each the same "
            f"share, or as a kind of your own with a rule that returns {len(inputs)} values."
        )


def record_whole(
    recording: Recording,
    kind: str,
    function: Callable[..., Any],
    inputs: list[Tensor],
    mixed_dims: int | None,
    name: str,
    where: str,
    registered: bool = True,
    stateless: bool = False,
) -> Any:
    """Record a function as one operation, or as one for each tensor that it returns.

    Args:
        recording: Where operations are recorded.
        kind: Their kind.
        function: Takes the inputs; may return tensors in tuples, lists, dicts or output classes.
        inputs: The tensors that depend on the model's input.
        mixed_dims: How many of the last dimensions it mixes, if that is known.
        name: Its name, for messages.
        where: The module it is called in, for messages.
        registered: Whether a user said what kind it is, so that it may be wrong.
        stateless: Whether it is known to compute the same at any later time.
    """
    if kind == SOFTMAX:  # that of an attention is known by its name
        kind, mixed_dims, name = "pass", 1, SOFTMAX
    leaves = tuple([x.detach().requires_grad_() for x in inputs])
    with torch.enable_grad():
        result = function(*leaves)

    def record_one(output: Tensor, function: Callable[..., Tensor]) -> Tensor:
        if registered and kind == "pass":
            _check_shape(name, inputs[0].shape, output.shape)
        is_single = bool(name_single_node(output, leaves))
        may_be_norm = kind == "pass" and name.lower().endswith("norm") and not is_single
        make = Norm if may_be_norm else Function
        operation = make(kind, function, mixed_dims, name, where)
        operation.is_stateless = stateless
        # The graph of many calls would keep much, but of a block that is called again.
        operation.keeps_graph = recording.is_block_again or is_single
        if not recording.intervention.edits:
            kept = operation.keeps_graph or may_be_norm
            known = leaves if kept else tuple([x.detach() for x in leaves])
            operation.first_run = known, output if kept else output.detach()
        return recording.apply(operation, *inputs)

    if isinstance(result, Tensor):
        return record_one(result, function)
    found, tree = flatten_tree(result)
    depends = [isinstance(one, Tensor) and one.requires_grad for one in found]
    for number, one in enumerate(found):
        if depends[number]:
            found[number] = record_one(one, _select_output(function, number))
        elif isinstance(one, Tensor):
            found[number] = one.detach()
    if not any(depends):
        raise WhenceError(
            f"{name} is registered as one operation, but of what it returns "
            f"({type(result).__name__}) no tensor depends on its input. Return tensors: one, or "
            f"several in a tuple, a list, a dict or an output class of transformers."
        )
    return unflatten_tree(found, tree)


def _select_output(function: Callable[..., Any], number: int) -> Callable[..., Tensor]:
    def select(*values: Tensor) -> Tensor:
        leaf: Tensor = flatten_tree(function(*values))[0][number]
        return leaf

    return select


def _check_shape(name: str, given: torch.Size, returned: torch.Size) -> None:
    """Refuse to pass relevance unchanged between different shapes."""
    added = len(returned) - len(given)
    pairs = zip(given, returned[added:], strict=False)
    if added >= 0 and all(a in (1, b) for a, b in pairs):
        return
    raise WhenceError(
        f"{name} is registered as 'pass', but makes {tuple(returned)} of {tuple(given)}: relevance "
        f"cannot pass it unchanged. Register it as 'sum' if it adds or averages its input, or as a "
        f"kind of your own with a rule."
    )
