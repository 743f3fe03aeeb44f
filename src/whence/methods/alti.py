"""ALTI: how near a token's vector comes to the output (Ferrando et al.; EMNLP 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import multiply_layers, select_layers
from whence.methods.shared.block_vectors import BlockVectors, find_resolution, find_vectors
from whence.tracing.graph import Block

# So many numbers of vectors between pairs of tokens are computed at a time.
_NUMBERS_AT_ONCE = 2**24


@register("alti")
@dataclass(frozen=True)
class Alti(Method):
    r"""How near the vector that a token adds comes to a layer's output, multiplied over layers.

    What leaves the attention of a layer with its skip connection, and its normalisation where that
    follows, is for token i a sum over tokens j,

    .. math:: y_i = \sum_j T_i(x_j) + b, \qquad T_i(x_j) =
        \frac{1}{\sigma_i} L \Bigl(\sum_h \alpha^h_{ij} f^h(x_j) + \delta_{ij} x_i\Bigr)

    with :math:`f^h(x_j)` the value of token j in head h multiplied by the output projection, L the
    normalisation's subtraction of the mean and its weight, :math:`\sigma_i` its denominator, and b
    all biases. In models that normalise before the attention, :math:`T_i(x_j)` has no
    normalisation. The contribution of token j is

    .. math:: C_{ij} = \max\bigl(0,\ \lVert y_i \rVert_1 - \lVert y_i - T_i(x_j) \rVert_1\bigr).

    Rows of C are divided by their sum, and the layers' matrices are multiplied; the feed-forward
    parts of layers do not mix tokens, and are left out. The scores are the rows of the pooled
    tokens.

    Attributes:
        layer: One layer alone; negative numbers count from the last; None multiplies all layers.
    """

    needs = ("attention", "blocks")
    citation = (
        "Ferrando, Gállego, Costa-jussà: Measuring the Mixing of Contextual Information in the "
        "Transformer, EMNLP 2022"
    )
    cost = "1, and the vectors of all pairs of tokens"
    class_specific = False
    streamed = True
    needs_one_sequence = True

    layer: int | None = None

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        layers = select_layers(self.layer, evidence)
        matrices = (_compute_contributions(evidence, layer) for layer in reversed(layers))
        return multiply_layers(matrices, evidence)


def _compute_contributions(evidence: Evidence, layer: int) -> Tensor:
    """Compute the contribution of each key to each query: (batch, queries, keys)."""
    trace, block = evidence.trace, evidence.blocks[layer]
    found = find_vectors(trace, block, with_norm=True)
    dtype = torch.promote_types(found.values.dtype, torch.float32)
    vectors = found.to(dtype)
    last = block.post_norm or block.skip_addition
    edge = trace.entries[last.index].output
    output = trace.split_tokens(last.output, edge, last.output.shape).to(dtype)
    rows, sums = [], []
    chunks = vectors.iterate_queries(block.site, evidence.batch, _NUMBERS_AT_ONCE)
    for queries, reached, added in chunks:
        out = output[:, queries, None]
        near = out.abs().sum(-1) - (out - added).abs().sum(-1)
        rows.append(near.clamp_(min=0) * reached)
        sums.append(added.sum(2))
    _check_sums(evidence, block, vectors, output - torch.cat(sums, 1))
    return torch.cat(rows, 1)


def _check_sums(evidence: Evidence, block: Block, vectors: BlockVectors, rest: Tensor) -> None:
    """Check that vectors add up to what leaves the attention, but for biases.

    Before the normalisation, these are the same for every token.
    """
    norm, mask = vectors.norm, evidence.token_mask[..., None]
    bias = rest if norm is None else (rest - norm.bias) * norm.spread
    bias = torch.where(mask, bias, 0)
    mean = bias.sum((0, 1)) / mask.sum()
    apart = torch.where(mask, bias - mean, 0).abs().amax()
    close = 1e3 * find_resolution(block.site.weights.dtype)
    size = vectors.own.abs().amax()
    if evidence.trace.guard.look_at(apart > close * size):
        raise WhenceError(
            f"More is added around the attention in {block.site.where} than its output and what "
            f"the skip connection holds, such as a feed-forward part beside it, so that tokens' "
            f"vectors do not add up to the output. 'attention_norm' works without."
        )
