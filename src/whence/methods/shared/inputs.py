"""What methods at the input share: from pixels or embeddings to tokens, and what they measure."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.evidence import Evidence

Output = Literal["logit", "probability"]


def summed(evidence: Evidence, values: Tensor) -> Tensor:
    """Values of all pixels or embeddings, (classes, batch, ...), summed to (..., tokens)."""
    if evidence.layout.grid is not None:
        _check_image(values)
        return pixels_to_tokens(evidence, values.sum(-3))
    return with_prefix(evidence, values.reshape(*values.shape[:3], -1).sum(-1))


def magnitudes(evidence: Evidence, gradient: Tensor) -> Tensor:
    """How large a gradient, (classes, batch, ...), is at each token: (classes, batch, tokens).

    Of an image: its absolute value, the largest over channels, the mean over a patch's pixels. Of
    embeddings: its Euclidean norm.
    """
    grid = evidence.layout.grid
    if grid is not None:
        _check_image(gradient)
        height, width = gradient.shape[-2:]
        largest = gradient.abs().amax(-3)
        return pixels_to_tokens(evidence, largest) * (grid[0] * grid[1] / (height * width))
    rows = gradient.reshape(*gradient.shape[:3], -1)
    return with_prefix(evidence, torch.linalg.vector_norm(rows, dim=-1))


def real_inputs(evidence: Evidence) -> Tensor:
    """(batch, rows of the input), true where the embedding is not one of padding."""
    shape = evidence.inputs.shape[:2]
    if evidence.padding is None or evidence.padding.shape != shape:
        return torch.ones(shape, dtype=torch.bool, device=evidence.inputs.device)
    return ~evidence.padding


def measured(evidence: Evidence, inputs: Tensor, samples: Tensor, output: Output) -> Tensor:
    """Logit or probability of the explained classes at other inputs: (classes, rows).

    Args:
        evidence: What is explained.
        inputs: (rows, ...), pixels or embeddings.
        samples: (rows,), which sample of the batch each row is.
        output: What to measure. A single logit is a quantity, and has no probability.
    """
    logits = evidence.forwards(inputs, samples)
    chosen = evidence.target_probabilities if output == "probability" else evidence.target_logits
    return chosen(logits, samples)


def check_one_row_per_token(evidence: Evidence, rows: int) -> None:
    """Make sure that an input that is no image has a row for every token.

    Raises:
        WhenceError: It has not, so nothing says which part of the input a token is.
    """
    tokens = evidence.trace.sites[0].key_count
    if rows not in (tokens, tokens - (evidence.layout.prefix or 0)):
        raise WhenceError(
            f"The input has {rows} rows and the model {tokens} tokens, so that whence cannot tell "
            f"which part of the input a token stands for. Methods that read attention, such as "
            f"'tiba', work without."
        )


def with_prefix(evidence: Evidence, scores: Tensor) -> Tensor:
    """Scores of rows of the input, with zeros for tokens that the model puts before them."""
    check_one_row_per_token(evidence, scores.shape[-1])
    return F.pad(scores, (evidence.trace.sites[0].key_count - scores.shape[-1], 0))


def _check_image(values: Tensor) -> None:
    if values.dim() != 5:
        raise WhenceError(
            f"The layout has a grid of patches, but the input is no image (batch, channels, "
            f"height, width): it has {values.dim() - 1} dimensions."
        )


def pixels_to_tokens(evidence: Evidence, scores: Tensor) -> Tensor:
    """Scores of pixels, (..., height, width), summed to those of tokens, (..., tokens).

    Prefix tokens stand nowhere on the image and get 0.
    """
    grid = evidence.layout.grid
    if grid is None:
        raise WhenceError("Only scores of pixels can be summed to patches.")
    height, width = scores.shape[-2:]
    maps = scores.reshape(-1, 1, height, width)
    patches = F.adaptive_avg_pool2d(maps, grid) * (height * width / (grid[0] * grid[1]))
    patches = patches.reshape(*scores.shape[:-2], grid[0] * grid[1])
    return F.pad(patches, (evidence.layout.prefix or 0, 0))


def tokens_to_inputs(evidence: Evidence, weights: Tensor) -> Tensor:
    """Weights of tokens, (rows, tokens), as factors of inputs, (rows, ...): one for each.

    Those of patches cover their pixels; those of prefix tokens are left out.
    """
    grid = evidence.layout.grid
    if grid is None:
        return weights.reshape(*weights.shape, *[1] * (evidence.inputs.dim() - 2))
    patches = weights[:, evidence.layout.prefix or 0 :].reshape(-1, 1, *grid)
    return F.interpolate(patches, size=evidence.inputs.shape[-2:], mode="nearest")
