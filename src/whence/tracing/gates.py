"""Gates: activations x g(x) that a model spells by hand, such as ``x * torch.sigmoid(1.7 * x)``.

Rules hold the gate g(x) of an activation, whether it is one call or many. A product is one if its
second factor is made of the first alone, element by element.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from whence._util import torch_internals as internals
from whence.tracing import calls
from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function
from whence.tracing.ops.sums import Add

# So many nodes a gate may consist of.
_LONGEST = 24
# Nodes that add a constant, or change the type.
_KEEPING = frozenset((internals.ADD, internals.SUB, internals.CLONE, internals.TO_COPY))
_POINTWISE = (calls.PASSING | calls.ELEMENT_WISE) - calls.MIXING
_SCALINGS = ("mul", "multiply", "div", "divide", "true_divide", "neg")

_Source = tuple[Node | None, int]


def as_gated(call: TorchCall) -> TorchCall | None:
    """The call of a product as that of x with its own gate; None if it is another product."""
    a, b = call.argument(0, "input"), call.argument(1, "other")
    if a.shape != b.shape:
        return None
    for x, gate in ((a, b), (b, a)):
        source = _skip_scaling(x)
        if _skip_scaling(gate) != source and _is_made_of(gate, source):
            return TorchCall(call.name, call.function, (x, gate), {})
    return None


def _skip_scaling(x: Tensor) -> _Source:
    """Where a tensor comes from, but for factors that are one constant number."""
    node, number = x.grad_fn, x.output_nr
    while node is not None:
        operation: Operation | None = getattr(node, "operation", None)
        if not isinstance(operation, Function) or operation.name not in _SCALINGS:
            break
        if operation.kind != "pass" or operation.mixed_dims != 0:
            break
        node, number = node.next_functions[0]
    return node, number


def _is_made_of(gate: Tensor, source: _Source) -> bool:
    """Whether a tensor is a function of another alone, element by element."""
    waiting: list[_Source] = [(gate.grad_fn, gate.output_nr)]
    seen: set[_Source] = set()
    while waiting:
        at = waiting.pop()
        if at == source or at in seen:
            continue
        seen.add(at)
        node = at[0]
        if node is None or len(seen) > _LONGEST or not _is_pointwise(node, gate):
            return False
        waiting += [edge for edge in node.next_functions if edge[0] is not None]
    return bool(seen)


def _is_pointwise(node: Node, gate: Tensor) -> bool:
    """Whether a node maps elements one by one; what operations keep may be freed already."""
    operation: Operation | None = getattr(node, "operation", None)
    if not (node.name() in _KEEPING if operation is None else _maps_elements(operation)):
        return False
    shapes = [internals.output_metadata(node)[0].shape]
    edges = ((source, number) for source, number in node.next_functions if source is not None)
    shapes += [internals.output_metadata(source)[number].shape for source, number in edges]
    return all(tuple(shape) == tuple(gate.shape) for shape in shapes)


def _maps_elements(operation: Operation) -> bool:
    if not isinstance(operation, Function):
        return isinstance(operation, Add)
    return (
        operation.kind in ("product", "quotient")
        or operation.mixed_dims == 0
        or (operation.kind == "pass" and operation.name in _POINTWISE)
    )
