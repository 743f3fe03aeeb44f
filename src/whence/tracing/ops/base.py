"""Operation: one step of the forward pass, as rules see it; sums and functions.

An operation keeps what its rules need: inputs, output, and the linear maps it is made of. It never
keeps a tensor that belongs to the graph, so no reference cycle holds memory back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, Self, TypeGuard

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import (
    SavedNorm,
    name_single_node,
    run_single_node,
    saved_layer_norm,
)
from whence.tracing.ops.activations import Activations
from whence.tracing.ops.guard import Guard
from whence.tracing.ops.skip_addition import SkipAddition

if TYPE_CHECKING:
    from whence.tracing.trace import Trace

Values = tuple[Tensor | None, ...]
Narrowed = tuple["Operation", tuple[torch.Size | None, ...]]


class BackwardRules(Protocol):
    """How values pass operations backward, in place of plain gradients."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def supports_partial(self) -> bool:
        """Whether `propagate` may be given some rows of an operation, or some of its inputs."""

    @property
    def scales_by_sums(self) -> bool:
        """Whether values are scaled so that they keep their sum."""

    @property
    def reads_linear(self) -> bool:
        """Whether it matters what linear maps and sums have read and put out."""

    @property
    def attention_factors(self) -> tuple[float, float, float] | None:
        """Factors of an attention's gradients by queries, keys and values, if that is all."""

    def prepare(self, trace: Trace) -> None:
        """Find in a recorded pass what rules must know of its operations."""

    def propagate(self, operation: Operation, value: Tensor) -> Values:
        """The value of each input of an operation, given that of its output."""

    def supports_classes(self, operation: Operation) -> bool:
        """Whether `propagate` may be given several classes at once, as a first dimension."""


class Operation(Activations):
    """One operation of the forward pass.

    Attributes:
        kind: The name under which a rule set holds its rule.
        name: The torch function or module that computed it, for messages.
        where: The module it was called in, for messages.
        constants: Names of the attributes that hold weights and other constants.
        guard: Looks at values.
        batch: Number of samples of the forward pass.
        output: The output; not part of the graph.
        input_type: The type of its inputs; None if it is not known, or they have several.
        reader_count: How many recorded operations read the output.
        index: Its number among the operations of the forward pass.
        in_attention: Whether it is the softmax of an attention, or its product with the values.
        wanted: For each input, whether its value is wanted; empty if all are.
        skip: Its part in the sum of a skip connection and its branches; None if it has none, or if
            skip connections have not been looked for.
    """

    kind = ""
    constants: tuple[str, ...] = ()
    guard: Guard = Guard()
    batch: int = 1
    output: Tensor
    input_type: torch.dtype | None = None
    reader_count = 0
    index = 0
    in_attention = False
    wanted: tuple[bool, ...] = ()
    skip: SkipAddition | None = None

    def __init__(self, name: str = "", where: str = "") -> None:
        self.name = name or type(self).__name__.lower()
        self.where = where

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the output and keep what `gradient` and the rules need."""
        raise NotImplementedError

    def gradient(self, output: Tensor) -> Values:
        """Gradients of the inputs, given that of the output."""
        raise NotImplementedError

    @property
    def supports_classes(self) -> bool:
        """Whether values may have classes as a dimension before their own.

        Where not, classes are propagated one at a time.
        """
        return False

    def sum_to_shape(self, value: Tensor, shape: torch.Size) -> Tensor:
        """Undo broadcasting, by summing; classes before the dimensions of the output stay."""
        extra = value.dim() - self.output.dim()
        if value.shape[extra:] == shape:
            return value
        ones = (1,) * (self.output.dim() - len(shape))
        classes = value.shape[:extra]
        return value.sum_to_size(*classes, *ones, *shape).reshape((*classes, *shape))

    def is_wanted(self, number: int) -> bool:
        """Whether the value of an input is wanted; a rule may give None for it if not."""
        return not self.wanted or self.wanted[number]

    def narrow_rows(
        self,
        dim: int,  # noqa: ARG002  for subclasses
        start: int,  # noqa: ARG002
        length: int,  # noqa: ARG002
    ) -> Narrowed | None:
        """The operation that makes only some rows of the output; None if it cannot be narrowed.

        Args:
            dim: The dimension of the rows, counted from the end.
            start: The first row.
            length: How many rows.

        Returns:
            The operation, and for each of its inputs the shape of the whole if it is narrowed to
            the same rows, or None if all of it is read.
        """
        return None

    def _narrow(self, names: tuple[str, ...], dim: int, start: int, length: int) -> Self:
        small = copy.copy(self)
        for name in names:
            setattr(small, name, getattr(self, name).narrow(dim, start, length))
        return small

    def release(self) -> None:
        """Free all tensors, when nothing will be read backward any more."""
        kept = self.__dict__
        for name in (*self.activations, *self.constants, "output"):
            kept.pop(name, None)

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what is kept of a tensor's memory before the model overwrites it."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and shares_memory(value, overwritten):
                setattr(self, name, value.clone())


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    place = a.untyped_storage().data_ptr()  # 0 of tensors without memory
    return place != 0 and place == b.untyped_storage().data_ptr()


class Add(Operation):
    """c = a + b, both terms depending on the input; `scale` multiplies b (-1 for a difference)."""

    kind = "add"
    supports_classes = True
    activations = ("a", "b")  # sums stay: the residual stream is one
    read_by_gradient = ()
    a: Tensor
    b: Tensor

    def __init__(self, scale: float = 1, name: str = "", where: str = "") -> None:
        super().__init__(name, where)
        self.scale = scale

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        self.shapes = a.shape, b.shape
        self.a = a.detach()
        self.b = b.detach() if self.scale == 1 else b.detach() * self.scale
        self.output = a + self.b
        return self.output

    def sum_to_shapes(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Undo broadcasting, by summing."""
        return self.sum_to_shape(a, self.shapes[0]), self.sum_to_shape(b, self.shapes[1])

    @override
    def gradient(self, output: Tensor) -> Values:
        return self.sum_to_shapes(output, output if self.scale == 1 else output * self.scale)

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        is_alone = self.skip is None or self.skip.is_alone
        if not (is_alone and self.a.shape == self.b.shape == self.output.shape):
            return None
        small = self._narrow(("a", "b", "output"), dim, start, length)
        small.shapes = small.a.shape, small.b.shape
        return small, self.shapes


class Shift(Operation):
    """y = x + c with a constant c: the position embeddings that are added to patches.

    Attributes:
        x: The input.
        constant: The constant, c.
    """

    kind = "shift"
    supports_classes = True
    activations = ("x", "output")
    constants = ("constant",)
    x: Tensor

    def __init__(self, constant: Tensor, name: str = "", where: str = "") -> None:
        super().__init__(name, where)
        self.constant = constant

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.x = inputs[0].detach()
        self.output = inputs[0] + self.constant
        return self.output

    @override
    def gradient(self, output: Tensor) -> Values:
        return (self.sum_to_shape(output, self.x.shape),)


class Function(Operation):
    """Any function of one or more tensors, taken as a whole.

    It makes a small graph of its own, so that gradients, and the products with Jacobians that a
    rule may want, come from autograd.

    Attributes:
        inputs: The inputs that depend on the model's input.
        mixed_dims: How many of the last dimensions it mixes: 0 for an element-wise function, 1 for
            a norm of rows; None if that is not known.
        mixed_axes: The dimensions it mixes, counted from the end, where they are not the last.
        absolute: Of a sum with negative weights, the same with their absolute values.
        is_by_value: Whether values, of an index or a grid, decide which elements it reads.
        divides_by_own_sum: Whether it is x / sum(x), as a softmax is of exponentials.
        keeps_graph: Whether the graph is kept from the forward pass on, or made when it is wanted.
        is_stateless: Whether it is known to compute the same at any later time.
        first_run: Inputs and output of the first run, where it has been made already.
    """

    activations: tuple[str, ...] = ("inputs", "output", "_graph_output")
    inputs: tuple[Tensor, ...]
    mixed_axes: tuple[int, ...] | None = None
    absolute: Callable[..., Tensor] | None = None
    is_by_value = False
    divides_by_own_sum = False
    keeps_graph = True
    is_stateless = True
    first_run: tuple[tuple[Tensor, ...], Tensor] | None = None

    def __init__(
        self,
        kind: str,
        function: Callable[..., Tensor],
        mixed_dims: int | None = None,
        name: str = "",
        where: str = "",
    ) -> None:
        super().__init__(name, where)
        self.kind = kind
        self.function = function
        self.mixed_dims = mixed_dims

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        known, self.first_run = self.first_run, None
        if known is None:
            with torch.set_grad_enabled(self.keeps_graph):
                self.inputs = tuple([x.detach().requires_grad_(self.keeps_graph) for x in inputs])
                self._graph_output = self.function(*self.inputs)
        else:
            self.inputs, self._graph_output = known
        self.output = self._graph_output.detach()
        return self.output

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """The product of a cotangent of the output with the Jacobian of each input."""
        if cotangent.dim() > self.output.dim():
            # Classes x samples as one larger batch.
            x = self.inputs[0].detach().expand_as(cotangent).flatten(0, 1)
            repeated = copy.copy(self)
            repeated.forward(x)
            return tuple(g.view_as(cotangent) for g in repeated.vjp(cotangent.flatten(0, 1)))
        graph = self
        if not self.keeps_graph:
            graph = copy.copy(self)
            graph.keeps_graph = True
            graph.forward(*self.inputs)
        single = run_single_node(graph._graph_output, graph.inputs, cotangent)
        return single or torch.autograd.grad(
            graph._graph_output, graph.inputs, cotangent, retain_graph=True, materialize_grads=True
        )

    @property
    def node_name(self) -> str:
        """The name of torch's own node for the whole of it; empty if it is none, or not known."""
        return name_single_node(self._graph_output, self.inputs) if self.keeps_graph else ""

    @property
    def saved_norm(self) -> SavedNorm | None:
        """What torch has kept of a layer norm; None if it is none, or keeps no graph."""
        return saved_layer_norm(self._graph_output.grad_fn) if self.keeps_graph else None

    @override
    def take_over(self, computed: Activations) -> bool:
        takes = super().take_over(computed)
        if takes and isinstance(computed, Function):
            self.keeps_graph = computed.keeps_graph
        return takes

    def with_absolute_weights(self) -> Function:
        """Of a sum, the one with the absolute values of its weights; mostly it is the same."""
        if self.absolute is None:
            return self
        absolute = copy.copy(self)
        absolute.function = self.absolute
        absolute.forward(*self.inputs)
        return absolute

    @override
    def gradient(self, output: Tensor) -> Values:
        return self.vjp(output)

    @override
    def narrow_rows(self, dim: int, start: int, length: int) -> Narrowed | None:
        if not self._maps_rows or -dim <= (self.mixed_dims or 0):
            return None
        x = self.inputs[0].detach()
        small = copy.copy(self)
        small.forward(x.narrow(dim, start, length))
        return small, (x.shape,)

    @property
    @override
    def supports_classes(self) -> bool:
        return self._maps_rows and (self.mixed_dims or 0) < self.output.dim()

    @property
    def _maps_rows(self) -> bool:
        """Whether a row of the output is made of the same row of the input."""
        known = self.mixed_dims is not None and len(self.inputs) == 1
        return known and self.inputs[0].shape == self.output.shape

    @override
    def preserve(self, overwritten: Tensor) -> None:
        if not any(shares_memory(kept, overwritten) for kept in (*self.inputs, self.output)):
            return
        if not any(x.is_meta for x in self.inputs):
            self.forward(*(x.detach().clone() for x in self.inputs))
            return
        # Of what is not in memory, nothing can be computed.
        self.inputs = tuple(
            x.detach().clone() if shares_memory(x, overwritten) else x for x in self.inputs
        )
        if shares_memory(self.output, overwritten):
            self.output = self.output.clone()


def is_traced(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor that depends on the model's input.

    Everything else is computed without gradients, so that only parameters, which are leaves, and
    what depends on the input can require them.
    """
    return isinstance(value, Tensor) and value.requires_grad and not value.is_leaf


def is_norm(operation: Operation) -> bool:
    """Whether an operation divides its input by a spread of it."""
    return _names_norm(operation.name)


@lru_cache(1024)
def _names_norm(name: str) -> bool:
    if name == "batch_norm":
        return False
    return name == "normalize" or name.lower().endswith("norm")
