"""FullGrad+, as the LibraGrad paper defines it (Mehri et al.; CVPR 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.rules.balanced import Gradients
from whence.tracing.ops.base import Function, Operation, is_norm
from whence.tracing.ops.products import Convolution, Linear
from whence.tracing.recording import Entry
from whence.tracing.trace import Trace


@register("fullgrad_plus", aliases=("fullgrad+",))
@dataclass(frozen=True)
class FullGradPlus(Method):
    r"""Value times gradient of what enters every block, and of every bias on the way to the logit.

    With :math:`x_l` the hidden states that enter block l, b the biases, and :math:`\nabla` the
    gradient of the class logit, a token gets

    .. math:: \sum_l x_l \cdot \nabla x_l + \sum_b b \cdot \nabla b,

    inner products over the width, at this token. Biases are those of linear layers and of
    normalisations behind :math:`x_0`, each counted at the token to which it is added. Those behind
    the pooling go to the tokens that are read, by their weights. With balanced gradients,
    :math:`x_0` and the biases alone (``layers="first"``) sum to the logit: nothing is lost.

    Attributes:
        layers: ``"all"``, or ``"first"`` for the hidden states that enter the first block only, as
            in FullGrad.
        biases: Whether biases take part.
        gradients: ``"plain"``, or ``"balanced"``, as in the paper's Libra FullGrad+.
    """

    needs: ClassVar[tuple[str, ...]] = ("hidden", "hidden_gradient", "blocks")
    citation: ClassVar[str] = (
        "Mehri, Soleymani Baghshah, Pilehvar: LibraGrad: Balancing Gradient Flow for Universally "
        "Better Vision Transformer Attributions, CVPR 2025; Srinivas, Fleuret: Full-Gradient "
        "Representation for Neural Network Visualization, NeurIPS 2019"
    )
    cost: ClassVar[str] = "3"
    signed: ClassVar[bool] = True

    layers: Literal["all", "first"] = "all"
    biases: bool = True
    gradients: Gradients = "plain"

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        count = 1 if self.layers == "first" else len(evidence.hidden) - 1
        parts = zip(evidence.hidden[:count], evidence.hidden_gradient[:count], strict=True)
        scores = torch.stack([(hidden * gradient).sum(-1) for hidden, gradient in parts]).sum(0)
        return scores + self._of_biases(evidence) if self.biases else scores

    def _of_biases(self, evidence: Evidence) -> Tensor:
        traced = evidence.trace
        found = [
            (step, bias)
            for step in _steps_behind(traced, evidence.blocks[0].input_edge)
            if (bias := _bias(step.operation)) is not None
        ]
        scores = torch.zeros_like(evidence.pooling)
        if not found:
            return scores
        places = [step.output for step, _ in found]
        rows = evidence.batch * evidence.tokens
        folded = [step.output for step, _ in found if len(step.operation.output) == rows]
        if folded and evidence.batch > 1:
            traced.find_sample_order(folded)
        gradients = traced.read(evidence.classes, places, self.gradient_rules)
        for (step, bias), gradient in zip(found, gradients, strict=True):
            shares = _shares(step.operation, bias, gradient)
            scores = scores + _at_tokens(shares, step, traced, evidence)
        return scores


def _steps_behind(traced: Trace, place: GradientEdge) -> Iterator[Entry]:
    """The operations that a place of the graph has an influence on."""
    influenced = {place.node}

    def is_influenced(node: Any) -> bool:
        waiting = [node]
        while waiting:
            at = waiting.pop()
            if at in influenced:
                return True
            if at is not None and not hasattr(at, "operation"):
                waiting.extend(behind for behind, _ in at.next_functions)
        return False

    for step in traced.entries:
        if any(is_influenced(edge.node) for edge in step.inputs):
            influenced.add(step.output.node)
            yield step


def _bias(operation: Operation) -> Tensor | None:
    """What an operation adds to every token, whatever comes in; None if nothing."""
    if isinstance(operation, Linear):
        return operation.bias
    if isinstance(operation, Function) and (is_norm(operation) or operation.name == "batch_norm"):
        with torch.no_grad():
            return operation.function(torch.zeros_like(operation.inputs[0]))
    return None


def _shares(operation: Operation, bias: Tensor, gradient: Tensor) -> Tensor:
    """Bias times gradient, (classes, ...), summed over the width."""
    if isinstance(operation, Convolution):
        return torch.einsum("nbc...,c->nb...", gradient, bias).flatten(2)
    return (gradient * bias).sum(-1)


def _at_tokens(shares: Tensor, step: Entry, traced: Trace, evidence: Evidence) -> Tensor:
    """Shares, laid out as the operation's output without its width, as (classes, batch, tokens)."""
    batch, tokens, prefix = evidence.batch, evidence.tokens, evidence.layout.prefix or 0
    rows = tuple(shares.shape[1:])
    if shares[0].numel() == batch:
        # Behind the pooling, where tokens are no more.
        return shares.reshape(-1, batch, 1) * evidence.pooling
    if prefix and rows == (batch, tokens - prefix):
        return F.pad(shares, (prefix, 0))
    if len(rows) == 3 and rows[0] == batch and rows[2] == tokens != rows[1]:
        return shares.sum(2)  # of heads
    try:
        by_token = traced.split_tokens(shares[..., None], step.output, torch.Size((*rows, 1)))
    except WhenceError as error:
        operation = step.operation
        raise WhenceError(
            f"A bias is added in `{operation.name}` to values of shape "
            f"{tuple(operation.output.shape)}, and whence cannot tell which of the {tokens} tokens "
            f"these belong to. Leave biases out: biases=False."
        ) from error
    return by_token.flatten(3).sum(-1)
