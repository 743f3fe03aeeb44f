"""What a single call is recorded as, beside its definition: the Jacobian, shared term by term."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from whence import rules
from whence.tracing import record
from whence.tracing.trace import Trace


class Calls(nn.Module):
    """A model that is one function; its outputs are the logits."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x).flatten(1)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def record_function(function: Callable[[Tensor], Tensor], x: Tensor) -> Trace:
    return record(Calls(function), (x,), {}, 0, needs_attention=False)


def read_each(trace: Trace, rule_set: str | None) -> Tensor:
    """What each output's 1 becomes at the input: (outputs, batch, elements)."""
    batch, outputs = trace.logits.shape
    classes = torch.arange(outputs).expand(batch, -1)
    (values,) = trace.read(classes, trace.leaves, None if rule_set is None else rules.get(rule_set))
    return values.flatten(2)


def find_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """d output_i / d x_j of each sample, which depends on no other: (outputs, batch, elements)."""
    x = x.detach().requires_grad_()
    y = function(x).flatten(1)
    each = torch.eye(y.shape[1], dtype=y.dtype)[:, None].expand(-1, *y.shape)
    (found,) = torch.autograd.grad(y, x, each, is_grads_batched=True)
    return found.flatten(2)


def share_terms(jacobian: Tensor, x: Tensor, size: Callable[[float], float]) -> Tensor:
    """R_j of each output i: size(x_j J_ij), divided by the sum over all j, in plain loops."""
    shares = torch.zeros_like(jacobian)
    flat = x.flatten(1)
    for i in range(jacobian.shape[0]):
        for sample in range(jacobian.shape[1]):
            terms = [size(float(t)) for t in jacobian[i, sample] * flat[sample]]
            whole = sum(terms)
            for j, term in enumerate(terms):
                shares[i, sample, j] = term / whole if whole else 0
    return shares
