"""Scores at pixels or embeddings summed to tokens, masks of units as factors of the inputs.

A model may read its input at several places, as a decoder reads the ids of the encoder again. Their
scores are added: a unit has one score for all places where it is read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import Evidence

Output = Literal["logit", "probability"]
Rows = Sequence[Tensor | None]
"""For each place, the numbers of the token ids that rows of embeddings come from, if it has any."""


def sum_over_tokens(
    evidence: Evidence, values: Sequence[Tensor], rows: Rows | None = None
) -> Tensor:
    """Sum values at pixels or embeddings, (classes, batch, ...), over each token and all places.

    ``rows`` are those of the trace, or of `Forwards` for what was computed there.
    """
    sums = [
        _sum_elements(evidence, value) if ids is None else _sum_rows(evidence, value, ids)
        for value, ids in zip(values, _get_rows(evidence, rows), strict=True)
    ]
    return evidence.layout.to_tokens(torch.stack(sums).sum(0))


def measure_magnitudes(
    evidence: Evidence, gradients: Sequence[Tensor], rows: Rows | None = None
) -> Tensor:
    """Measure the magnitude of a gradient, (classes, batch, ...), at each token.

    For images and signals: the absolute value, the largest over channels, the mean over a unit's
    pixels. For embeddings: the Euclidean norm, added up over all places.
    """
    magnitudes, layout = [], evidence.layout
    for gradient, ids in zip(gradients, _get_rows(evidence, rows), strict=True):
        if ids is not None:
            lengths = torch.linalg.vector_norm(gradient.flatten(1 + ids.dim()), dim=-1)
            magnitudes.append(_sum_rows(evidence, lengths, ids))
            continue
        others = [2 + d for d in range(gradient.dim() - 2) if d not in _require_axes(evidence)]
        magnitude = gradient.abs()
        if others and layout.grid is None:
            magnitude = torch.linalg.vector_norm(gradient, dim=others, keepdim=True)
        elif others:
            magnitude = magnitude.amax(others, keepdim=True)
        pixels = _sum_elements(evidence, torch.ones_like(magnitude[:1, :1]))
        magnitudes.append(_sum_elements(evidence, magnitude) / pixels.clamp(min=1))
    return layout.to_tokens(torch.stack(magnitudes).sum(0))


def _get_rows(evidence: Evidence, rows: Rows | None) -> Rows:
    return [place.rows for place in evidence.trace.inputs] if rows is None else rows


def _require_axes(evidence: Evidence) -> tuple[int, ...]:
    """The input's dimensions that units lie along."""
    if not evidence.layout.axes:
        raise WhenceError(
            f"The input has {evidence.trace.inputs[0].leaf.dim()} dimensions and the model "
            f"{evidence.tokens} tokens, and whence cannot tell which part of the input a token "
            f"stands for. Methods that read attention, such as 'tiba', work without."
        )
    return evidence.layout.axes


def _sum_elements(evidence: Evidence, values: Tensor) -> Tensor:
    """Sum values at the elements of the input, (..., batch, *shape), to units."""
    axes, layout = _require_axes(evidence), evidence.layout
    shape = values.shape[-(evidence.trace.inputs[0].leaf.dim() - 1) :]
    extra = values.dim() - len(shape)
    others = [extra + d for d in range(len(shape)) if d not in axes]
    values = (values.sum(others) if others else values).flatten(extra)
    index = layout.number_elements(shape, values.device).flatten()
    units = values.new_zeros(*values.shape[:extra], layout.unit_count + 1)
    # Elements of no unit are added to one more, which is left out.
    index = torch.where(index < 0, layout.unit_count, index)
    return units.index_add(-1, index, values)[..., :-1]


def _sum_rows(evidence: Evidence, values: Tensor, ids: Tensor) -> Tensor:
    """Sum values at rows of embeddings, (classes, *rows, ...), to (classes, batch, units)."""
    batch, units = evidence.batch, evidence.layout.unit_count
    values = values.reshape(len(values), ids.numel(), -1).sum(-1)
    index = ids.reshape(-1)
    index = torch.where(index < 0, batch * units, index)
    sums = values.new_zeros(len(values), batch * units + 1).index_add(1, index, values)
    return sums[:, :-1].reshape(-1, batch, units)


def mark_unpadded_units(evidence: Evidence) -> Tensor:
    """Mark the units that are no padding: (batch, units)."""
    layout = evidence.layout
    padding = layout.mark_padding(evidence.padding, evidence.batch, absent=False)
    if padding is None:
        shape = evidence.batch, layout.unit_count
        return torch.ones(shape, dtype=torch.bool, device=evidence.logits.device)
    return ~layout.to_units(padding)


def compute_outputs(
    evidence: Evidence, inputs: Sequence[Tensor], samples: Tensor, output: Output
) -> Tensor:
    """Compute logits or probabilities of the explained classes at other inputs: (classes, rows).

    ``samples`` says which sample of the batch each row of ``inputs``, (rows, ...), is.
    """
    logits = evidence.forwards(inputs, samples)
    if output == "probability":
        return evidence.targets.probabilities(logits, samples)
    return evidence.targets.values(logits, samples)


def pixels_to_units(evidence: Evidence, scores: Tensor) -> Tensor:
    """Sum scores of pixels, (..., height, width), over each unit: (..., units)."""
    shape = evidence.trace.inputs[0].leaf.shape[1:]
    whole = scores.reshape(*scores.shape[:-2], *[1] * (len(shape) - 2), *scores.shape[-2:])
    return _sum_elements(evidence, whole)


def units_to_inputs(evidence: Evidence, weights: Tensor, samples: Tensor) -> list[Tensor]:
    """Expand weights of units, (rows, units), to factors of the inputs of `Forwards`, (rows, ...).

    The weight of a unit is the factor of all that belongs to it; what belongs to no unit gets 1.
    """
    factors = []
    padded = torch.cat([weights, torch.ones_like(weights[:, :1])], 1)
    for inputs, ids in zip(evidence.forwards.inputs, evidence.forwards.rows, strict=True):
        if ids is None:
            _require_axes(evidence)
            index = evidence.layout.number_elements(inputs.shape[1:], weights.device)
            factors.append(padded[:, index])
            continue
        index = torch.where(ids < 0, -1, ids % weights.shape[1])[samples].flatten(1)
        factor = padded.gather(1, torch.where(index < 0, weights.shape[1], index))
        shape = ids.shape[1:]
        factors.append(factor.reshape(-1, *shape, *[1] * (inputs.dim() - 1 - len(shape))))
    return factors


@contextmanager
def require_gradient(method: str) -> Iterator[None]:
    """Say in a sentence that a model is cut off from its input by ``torch.no_grad``.

    Raises:
        WhenceError: Autograd has no gradient at the input.
    """
    try:
        yield
    except RuntimeError as error:
        if "have been used in the graph" not in str(error):
            raise
        raise WhenceError(
            f"The model switches gradients off on the way from the input (torch.no_grad), and "
            f"'{method}' needs them in every pass. 'input_x_gradient', 'attnlrp' and 'occlusion' "
            f"work."
        ) from error
