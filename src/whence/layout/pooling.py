"""Which tokens the classifier reads, found from the gradient rather than from the model's name."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.layout.tokens import Layout


def pooling_weights(dependence: Tensor, layout: Layout) -> Tensor:
    """Weights, summing to 1, of the rows that an explanation is read from.

    After the last attention tokens no longer mix, so the logit has a gradient exactly at the tokens
    that the classifier reads. Pooling by class token gives a single one; by average, equal weights;
    class and distillation token, a half each. Where a head reads prefix tokens and patches (the
    class token beside the patches' mean, as in DINOv2), each group is averaged, and the groups
    weigh as strongly as the logit depends on them.

    Args:
        dependence: (..., tokens), how strongly the logit depends on each row of the last attention.
        layout: Prefix tokens, and pooled tokens if the user named them.
    """
    weights = torch.zeros_like(dependence)
    if layout.pooled is not None:
        weights[..., list(layout.pooled)] = 1 / len(layout.pooled)
        return weights
    is_prefix = torch.arange(dependence.shape[-1], device=dependence.device) < (layout.prefix or 0)
    total = dependence.sum(-1, keepdim=True)
    for group in (is_prefix, ~is_prefix):
        read = (dependence > 0) & group
        share = (dependence * group).sum(-1, keepdim=True) / total
        weights += torch.where(read, share / read.sum(-1, keepdim=True), 0)
    return weights
