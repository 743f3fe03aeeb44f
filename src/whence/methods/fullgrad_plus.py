"""FullGrad+: inputs and biases times their gradients (Mehri et al.; CVPR 2025)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import refuse_flow
from whence.rules.balanced import Gradients
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.products import Convolution, Linear
from whence.tracing.recording import TraceEntry
from whence.tracing.trace import Trace


@register("fullgrad_plus", aliases=("fullgrad+",))
@dataclass(frozen=True)
class FullGradPlus(Method):
    r"""Hidden state times gradient at every block's input, plus bias times gradient.

    With :math:`x_l` the hidden states that enter block l, b the biases, and :math:`\nabla` the
    gradient of the class logit, the score of a token is

    .. math:: \sum_l x_l \cdot \nabla x_l + \sum_b b \cdot \nabla b,

    inner products over the width, at this token. Biases are those of linear layers and of
    normalisations downstream of :math:`x_0`, each counted at the token to which it is added. Those
    downstream of the pooling go to the pooled tokens, by their weights. With balanced gradients,
    :math:`x_0` and the biases alone (``layers="first"``) sum to the logit.

    Attributes:
        layers: ``"all"``, or ``"first"`` for the hidden states that enter the first block only, as
            in FullGrad.
        biases: Whether biases count.
        gradients: ``"plain"``, ``"balanced"``, as in the paper's Libra FullGrad+, or
            ``"residual"``.
    """

    needs = ("hidden", "hidden_gradient", "blocks")
    citation = (
        "Mehri, Soleymani Baghshah, Pilehvar: LibraGrad: Balancing Gradient Flow for Universally "
        "Better Vision Transformer Attributions, CVPR 2025; Srinivas, Fleuret: Full-Gradient "
        "Representation for Neural Network Visualization, NeurIPS 2019"
    )
    cost = "3"
    needs_one_sequence = True
    signed = True

    layers: Literal["all", "first"] = "all"
    biases: bool = True
    gradients: Gradients = "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        refuse_flow(evidence)
        count = 1 if self.layers == "first" else len(evidence.hidden) - 1
        pairs = zip(evidence.hidden[:count], evidence.hidden_gradient[:count], strict=True)
        scores = torch.stack([(hidden * gradient).sum(-1) for hidden, gradient in pairs]).sum(0)
        return scores + self._score_biases(evidence) if self.biases else scores

    def _score_biases(self, evidence: Evidence) -> Tensor:
        trace = evidence.trace
        biased = [
            (entry, bias)
            for entry in _find_downstream(trace, evidence.blocks[0].input_edge)
            if (bias := _get_bias(entry.operation)) is not None
        ]
        scores = torch.zeros_like(evidence.pooling)
        if not biased:
            return scores
        rows = evidence.batch * evidence.tokens
        folded = [entry.output for entry, _ in biased if len(entry.operation.output) == rows]
        if folded and evidence.batch > 1:
            trace.find_sample_order(folded)
        seeds = evidence.make_seeds(self.gradient_rules)
        gradients = trace.read(seeds, [e.output for e, _ in biased], self.gradient_rules)
        for (entry, bias), gradient in zip(biased, gradients, strict=True):
            shares = _sum_over_width(entry.operation, bias, gradient)
            scores = scores + _assign_to_tokens(shares, entry, trace, evidence)
        return scores


def _find_downstream(trace: Trace, edge: GradientEdge) -> Iterator[TraceEntry]:
    """Find the operations downstream of an edge of the graph."""
    reached = {edge.node}

    def is_downstream(node: Node | None) -> bool:
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if current in reached:
                return True
            if current is not None and not hasattr(current, "operation"):
                waiting.extend(upstream for upstream, _ in current.next_functions)
        return False

    for entry in trace.entries:
        if any(is_downstream(edge.node) for edge in entry.inputs):
            reached.add(entry.output.node)
            yield entry


def _get_bias(operation: Operation) -> Tensor | None:
    """Get the constant that an operation adds to every token; None if there is none."""
    if isinstance(operation, Linear):
        return operation.bias
    if isinstance(operation, Function) and (is_norm(operation) or operation.name == "batch_norm"):
        with torch.no_grad():
            return operation.function(torch.zeros_like(operation.inputs[0]))
    return None


def _sum_over_width(operation: Operation, bias: Tensor, gradient: Tensor) -> Tensor:
    """Sum bias times gradient, (classes, ...), over the width."""
    if isinstance(operation, Convolution):
        return torch.einsum("nbc...,c->nb...", gradient, bias).flatten(2)
    return (gradient * bias).sum(-1)


def _assign_to_tokens(
    shares: Tensor, entry: TraceEntry, trace: Trace, evidence: Evidence
) -> Tensor:
    """Assign shares, in the layout of the operation's output without width, to tokens."""
    batch, tokens, units = evidence.batch, evidence.tokens, evidence.layout.unit_count
    rows = tuple(shares.shape[1:])
    if shares[0].numel() == batch:
        # Downstream of the pooling, where there are no tokens.
        return shares.reshape(-1, batch, 1) * evidence.pooling
    if units != tokens and rows == (batch, units):
        return evidence.layout.to_tokens(shares)
    if len(rows) == 3 and rows[0] == batch and rows[2] == tokens != rows[1]:
        return shares.sum(2)  # of heads
    try:
        by_token = trace.split_tokens(shares[..., None], entry.output, torch.Size((*rows, 1)))
    except WhenceError as error:
        operation = entry.operation
        raise WhenceError(
            f"A bias is added in `{operation.name}` to values of shape "
            f"{tuple(operation.output.shape)}, and whence cannot tell which of the {tokens} tokens "
            f"these belong to. Leave biases out: biases=False."
        ) from error
    return by_token.flatten(3).sum(-1)
