"""Norms that models spell by hand, as products whose factors are known."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.torch_norms import NormNodes, NormStep, read_norm
from whence.tracing.ops.function import Function


class Norm(Function):
    """A function that may be a norm, y = x · factors · spread, as RMSNorm is.

    Autograd's nodes of its run prove it. Of them it keeps the spread, one number for each row, and
    computes gradients by formulas. What is not proven is computed as of any other function.

    Attributes:
        spread: The spread, or one over it, if it is proven to be such a norm.
    """

    activations = (*Function.activations, "spread")
    constants = ("_nodes",)
    spread: Tensor
    _nodes: NormNodes | None = None

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        known, self.first_run = self.first_run, None
        if known is None:
            with torch.enable_grad():
                leaf = inputs[0].detach().requires_grad_()
                known = (leaf,), self.function(leaf)
        (leaf,), output = known
        self.output = output.detach()
        found = read_norm(output, leaf)
        if found is None:
            self._nodes = None
        else:
            self._nodes, self.spread = found
            self.keeps_graph &= not self._nodes.mean_dims  # no gradient needs it
        self.read_by_gradient = None if self.keeps_graph else ("inputs", "spread")
        self.inputs = (leaf if self.keeps_graph else leaf.detach(),)
        self._graph_output = output if self.keeps_graph else self.output
        return self.output

    def hold_spread(self, gradient: Tensor) -> Tensor | None:
        """The gradient of the input with the spread taken as constant; None if it is not proven.

        There may be classes before the dimensions of the output.
        """
        if self._nodes is None:
            return None
        steps = self._nodes.steps
        for step, following in zip(steps, (*steps[1:], None), strict=True):
            if not self._is_done_by(following, step):
                gradient = self._pass_step(step, gradient)
        return gradient

    def _is_done_by(self, following: NormStep | None, step: NormStep) -> bool:
        """Whether a step only widens the type, which a product with a wide factor does as well."""
        if following is None or step.is_spread or step.factor is not None:
            return False
        factor = self.spread if following.is_spread else following.factor
        return factor is not None and factor.dim() > 0 and factor.dtype == step.dtype

    def _pass_step(self, step: NormStep, gradient: Tensor) -> Tensor:
        factor = self.spread if step.is_spread else step.factor
        if factor is not None:
            gradient = gradient / factor if step.divides else gradient * factor
        return gradient if gradient.dtype == step.dtype else gradient.to(step.dtype)

    @override
    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        dims = () if self._nodes is None else self._nodes.mean_dims
        if self._nodes is None or not dims:
            return super().vjp(cotangent)
        x, gradient = self.inputs[0].detach(), cotangent
        count = math.prod(x.shape[dim] for dim in dims)
        for step in self._nodes.steps:
            before, gradient = gradient, self._pass_step(step, gradient)
            if step.is_spread:
                # By the spread s = mean(x²)^(-1/2): its gradient is -s³ x / n.
                x = x.to(step.dtype)
                of_spread = (before * x).sum(dims, keepdim=True)
                gradient = gradient - x * (of_spread * self.spread**3 / count)
        return (gradient,)
