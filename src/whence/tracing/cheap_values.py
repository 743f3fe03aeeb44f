"""Values of a block that are cheap to compute from others: freed while the block is not read.

In a gated feed-forward part, the activation of the gate is a function of the gate, element by
element; and keys and values that several heads share are repeated. Without such values, memory
holds more blocks, and fewer are called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from whence._util.torch_internals import is_any_autocast_enabled
from whence.tracing.ops.base import Operation, shares_memory, to_shapes
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Linear, MatMul
from whence.tracing.ops.scaling import Product, Scaling
from whence.tracing.ops.sums import Add

# Operations that keep what they read as it is. Others may keep it in a graph of autograd as well.
_PLAIN_READERS = (Linear, MatMul, Add, Product, Scaling)
_OUTPUTS = ("output", "_graph_output")


class CheapValues:
    """What operations of a block keep that is cheap to compute from the rest.

    Args:
        operations: The operations of the block, in their order.

    Attributes:
        is_free: Whether the values are not in memory.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.is_free = False
        self._copies = _find_copies(operations)
        self._strides = {source: source.output.stride() for source in self._copies}
        self._attentions = [
            one for one in operations if isinstance(one, ChunkedAttention) and one.groups > 1
        ]
        self._marked: list[Operation] = []

    @property
    def shared_bytes(self) -> int:
        """How many bytes are kept to restore keys and values."""
        return sum(attention.shared_bytes for attention in self._attentions)

    def free(self) -> None:
        """Free the values; an operation that is read then has them restored."""
        if self.is_free:
            return
        for attention in self._attentions:
            attention.free_repeated()
        for source, copies in self._copies.items():
            for name in _OUTPUTS:
                if name in vars(source):  # gone where all has been read of it
                    setattr(source, name, to_shapes(getattr(source, name)))
            for copy in copies:
                copy.replace(to_shapes)
        readers = (copy.operation for copies in self._copies.values() for copy in copies)
        concerned = dict.fromkeys((*self._attentions, *self._copies, *readers))
        self._marked = [operation for operation in concerned if not operation.is_set_aside]
        for operation in self._marked:
            operation.is_set_aside = True
        self.is_free = True

    def restore(self) -> None:
        """Compute the values again."""
        for attention in self._attentions:
            attention.restore_repeated()
        for source, copies in self._copies.items():
            inputs = vars(source).get("inputs")
            if inputs is None or any(x.is_meta for x in inputs):
                continue  # all has been read of it, or of what it is computed from
            output = _compute_again(source)
            if output.stride() != self._strides[source]:
                ordered = output.new_empty_strided(output.shape, self._strides[source])
                output = ordered.copy_(output)
            for copy in copies:
                copy.restore(output)
        for operation in self._marked:
            operation.is_set_aside = False
        self.is_free = False


class _Copy:
    """Where the output of an operation is kept once more: an attribute, or one of its tensors.

    Args:
        operation: The operation that keeps it.
        name: The attribute.
        number: Which of several tensors it is.
        value: The tensor, a view of the output.
    """

    def __init__(self, operation: Operation, name: str, number: int, value: Tensor) -> None:
        self.operation = operation
        self._name, self._number = name, number
        self._view = value.shape, value.stride(), value.storage_offset()

    def restore(self, output: Tensor) -> None:
        """Keep the view of an output again."""
        self.replace(lambda _: output.as_strided(*self._view))

    def replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Keep something else in place of the tensor."""
        kept = vars(self.operation).get(self._name)
        if isinstance(kept, tuple):
            before, after = kept[: self._number], kept[self._number + 1 :]
            setattr(self.operation, self._name, (*before, change(kept[self._number]), *after))
        elif kept is not None:  # gone where all has been read of it
            setattr(self.operation, self._name, change(kept))


def _compute_again(source: Function) -> Tensor:
    """The output of a function that keeps its inputs."""
    inputs = [x.detach() for x in source.inputs]
    if not is_any_autocast_enabled():
        return source.forward(*inputs)
    with torch.autocast(inputs[0].device.type, enabled=False):  # as when it was recorded
        return source.forward(*inputs)


def _find_copies(operations: Sequence[Operation]) -> Mapping[Function, list[_Copy]]:
    """Functions whose outputs can be freed, and where else these are kept, in their order."""
    found = [one for one in operations if isinstance(one, Function) and _is_cheap(one)]
    while True:
        of_memory = {source.output.untyped_storage().data_ptr(): source for source in found}
        copies: dict[Function, list[_Copy]] = {source: [] for source in found}
        elsewhere = set[Function]()
        for operation in operations:
            for name, number, value in list_activations(operation):
                source = of_memory.get(value.untyped_storage().data_ptr())
                if source is None or (source is operation and name in _OUTPUTS):
                    continue
                copies[source].append(_Copy(operation, name, number, value))
                if not isinstance(operation, _PLAIN_READERS) and operation not in copies:
                    elsewhere.add(source)
        if not elsewhere:
            return copies
        found = [source for source in found if source not in elsewhere]


def _is_cheap(operation: Function) -> bool:
    """Whether a function works element by element, on inputs that are kept."""
    by_elements = type(operation) is Function and operation.mixed_dims == 0
    by_elements = by_elements and operation.is_stateless
    if operation.keeps_output or not (by_elements or isinstance(operation, (Product, Scaling))):
        return False
    output: Tensor = operation.output
    is_alone = not output.is_meta and 0 < output.untyped_storage().nbytes() == output.nbytes
    return is_alone and not any(x.is_meta or shares_memory(x, output) for x in operation.inputs)


def list_activations(operation: Operation) -> Iterator[tuple[str, int, Tensor]]:
    """The tensors that an operation keeps: their attributes, and which of several each is."""
    for name in dict.fromkeys((*operation.activations, "output")):
        kept = vars(operation).get(name)
        for number, one in enumerate(kept if isinstance(kept, tuple) else (kept,)):
            if isinstance(one, Tensor) and not one.is_meta:
                yield name, number, one
