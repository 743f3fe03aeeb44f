"""Scores at pixels or embeddings summed to tokens, masks of tokens as factors of the inputs."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.evidence import Evidence

Output = Literal["logit", "probability"]


def sum_over_tokens(evidence: Evidence, values: Tensor) -> Tensor:
    """Sum values at pixels or embeddings, (classes, batch, ...), over each token."""
    if evidence.layout.grid is not None:
        _check_image(values)
        return pixels_to_tokens(evidence, values.sum(-3))
    return pad_prefix(evidence, values.reshape(*values.shape[:3], -1).sum(-1))


def measure_magnitudes(evidence: Evidence, gradient: Tensor) -> Tensor:
    """Measure the magnitude of a gradient, (classes, batch, ...), at each token.

    For an image: the absolute value, the largest over channels, the mean over a patch's pixels. For
    embeddings: the Euclidean norm.
    """
    grid = evidence.layout.grid
    if grid is not None:
        _check_image(gradient)
        height, width = gradient.shape[-2:]
        sums = pixels_to_tokens(evidence, gradient.abs().amax(-3))
        return sums * (grid[0] * grid[1] / (height * width))
    rows = gradient.reshape(*gradient.shape[:3], -1)
    return pad_prefix(evidence, torch.linalg.vector_norm(rows, dim=-1))


def mark_unpadded_rows(values: Tensor, evidence: Evidence) -> Tensor:
    """Mark the rows of values, (batch, rows, ...), that are no padding: (batch, rows)."""
    if evidence.padding is None or evidence.padding.shape != values.shape[:2]:
        return torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
    return ~evidence.padding


def compute_outputs(evidence: Evidence, inputs: Tensor, samples: Tensor, output: Output) -> Tensor:
    """Compute logits or probabilities of the explained classes at other inputs: (classes, rows).

    ``samples`` says which sample of the batch each row of ``inputs``, (rows, ...), is.
    """
    logits = evidence.forwards(inputs, samples)
    if output == "probability":
        return evidence.target_probabilities(logits, samples)
    return evidence.target_logits(logits, samples)


def require_one_row_per_token(evidence: Evidence, rows: int) -> None:
    """Check that an input that is no image has a row for every token."""
    tokens = evidence.tokens
    if rows not in (tokens, tokens - (evidence.layout.prefix or 0)):
        raise WhenceError(
            f"The input has {rows} rows and the model {tokens} tokens, so that whence cannot tell "
            f"which part of the input a token represents. Methods that read attention, such as "
            f"'tiba', work without."
        )


def pad_prefix(evidence: Evidence, scores: Tensor) -> Tensor:
    """Pad scores of the input's rows with zeros for the model's prefix tokens."""
    require_one_row_per_token(evidence, scores.shape[-1])
    return F.pad(scores, (evidence.tokens - scores.shape[-1], 0))


def pixels_to_tokens(evidence: Evidence, scores: Tensor) -> Tensor:
    """Sum scores of pixels, (..., height, width), over each token: (..., tokens).

    Prefix tokens have no place in the image and get 0.
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
    """Expand weights of tokens, (rows, tokens), to factors of the inputs, (rows, ...).

    The weight of a patch is the factor of its pixels; weights of prefix tokens are left out.
    """
    grid = evidence.layout.grid
    if grid is None:
        return weights.reshape(*weights.shape, *[1] * (evidence.inputs.dim() - 2))
    patches = weights[:, evidence.layout.prefix or 0 :].reshape(-1, 1, *grid)
    return F.interpolate(patches, size=evidence.inputs.shape[-2:], mode="nearest")


def _check_image(values: Tensor) -> None:
    if values.dim() != 5:
        raise WhenceError(
            f"The layout has a grid of patches, but the input is no image (batch, channels, "
            f"height, width): it has {values.dim() - 1} dimensions."
        )
