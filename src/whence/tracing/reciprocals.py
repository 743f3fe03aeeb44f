"""Products with one over something: quotients, as in norms that are written so.

``x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))`` divides x by a spread of it. Rules pass
relevance to the numerator of a quotient, but to both factors of a product.
"""

from __future__ import annotations

from torch import Tensor

from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import Operation, is_traced

_RECIPROCAL = "reciprocal"
_RECIPROCALS = frozenset((_RECIPROCAL, "rsqrt", "__rdiv__", "__rtruediv__"))


def name_function(call: TorchCall) -> str:
    """The name of a call; `reciprocal` if it divides a constant or takes a negative power."""
    divides_constant = "div" in call.name and not is_traced(call.argument(0, "input"))
    power = call.argument(1, "exponent") if call.name in ("pow", "float_power") else 0
    is_negative = isinstance(power, int | float) and power < 0
    return _RECIPROCAL if divides_constant or is_negative else call.name


def as_quotient(call: TorchCall) -> TorchCall | None:
    """The call of a product as that of a numerator with a reciprocal; None if it is none."""
    factors = call.argument(0, "input"), call.argument(1, "other")
    first_is, second_is = map(_is_reciprocal, factors)
    if first_is == second_is:
        return None
    return TorchCall(call.name, call.function, factors[::-1] if first_is else factors, {})


def _is_reciprocal(factor: Tensor) -> bool:
    """Whether a tensor is one over something, moved about or times a constant since."""
    node = factor.grad_fn
    while node is not None and len(node.next_functions) == 1:
        operation: Operation | None = getattr(node, "operation", None)
        if operation is not None and operation.name not in ("mul", "multiply"):
            return operation.name in _RECIPROCALS
        node = node.next_functions[0][0]
    return False
