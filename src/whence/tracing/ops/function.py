"""Functions that are taken as a whole: activations, norms, means, and all else of one kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_internals import (
    SavedNorm,
    name_single_node,
    run_single_node,
    saved_layer_norm,
)
from whence.tracing.ops.base import Activations, Narrowed, Operation, Values, shares_memory


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


def is_norm(operation: Operation) -> bool:
    """Whether an operation divides its input by a spread of it."""
    return _names_norm(operation.name)


@lru_cache(1024)
def _names_norm(name: str) -> bool:
    if name == "batch_norm":
        return False
    return name == "normalize" or name.lower().endswith("norm")
