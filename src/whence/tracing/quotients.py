"""Quotients, as models write them.

``x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))`` divides x by a spread of it, as a norm does.
Rules pass relevance to the numerator of a quotient, but to both factors of a product.
``x / x.sum(-1, keepdim=True)`` is the last step of a softmax: the weights of the chosen experts.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import Operation, is_traced

_RECIPROCAL = "reciprocal"
_RECIPROCALS = frozenset((_RECIPROCAL, "rsqrt", "__rdiv__", "__rtruediv__"))


def name_function(call: TorchCall) -> str:
    """The name of a call; `reciprocal` if it divides a constant or takes a negative power.

    A power of 1 or more is called `square`: like a square, it is a function through the origin.
    """
    divides_constant = "div" in call.name and not is_traced(call.argument(0, "input"))
    power = call.argument(1, "exponent") if call.name in ("pow", "float_power") else 0
    power = power if isinstance(power, int | float) else 0
    if divides_constant or power < 0:
        return _RECIPROCAL
    return "square" if power >= 1 else call.name


def as_quotient(call: TorchCall) -> TorchCall | None:
    """The call of a product as that of a numerator with a reciprocal; None if it is none."""
    factors = call.argument(0, "input"), call.argument(1, "other")
    first_is, second_is = map(_is_reciprocal, factors)
    if first_is == second_is:
        return None
    return TorchCall(call.name, call.function, factors[::-1] if first_is else factors, {})


def divides_by_own_sum(numerator: Tensor, denominator: Tensor) -> bool:
    """Whether a denominator is the sum of the numerator, perhaps with a constant or a least one."""
    node = _skip_routing(denominator.grad_fn)
    while node is not None and _name(node) in ("clamp", "clamp_min"):
        node = _skip_routing(_only_source(node))
    operation: Operation | None = getattr(node, "operation", None)
    if node is None or operation is None or operation.kind != "sum":
        return False
    return tuple(node.next_functions[0]) == (numerator.grad_fn, numerator.output_nr)


def _is_reciprocal(factor: Tensor) -> bool:
    """Whether a tensor is one over something, moved about or times a constant since."""
    node = _skip_routing(factor.grad_fn)
    while node is not None and _name(node) in ("mul", "multiply"):
        node = _skip_routing(_only_source(node))
    return _name(node) in _RECIPROCALS


def _skip_routing(node: Node | None) -> Node | None:
    """The first operation upstream, if nothing else leads there."""
    while node is not None and not hasattr(node, "operation"):
        node = _only_source(node)
    return node


def _only_source(node: Node) -> Node | None:
    """The node that alone leads to another; None if there are several."""
    sources = [source for source, _ in node.next_functions if source is not None]
    return sources[0] if len(sources) == 1 else None


def _name(node: Node | None) -> str:
    operation: Operation | None = getattr(node, "operation", None)
    return "" if operation is None else operation.name
