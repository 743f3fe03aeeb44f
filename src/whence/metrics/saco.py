"""SaCo, the salience-guided faithfulness coefficient: do higher scores mean larger effects?

Wu, Kang, Tang, Hong, Yan, "On the faithfulness of vision transformer explanations", CVPR 2024.

    >>> groups = group_units(scores, 10)  # doctest: +SKIP
    >>> drops = ...  # of the target's probability, when one group is replaced
    >>> saco = compute_saco(sum_groups(scores, groups, 10), drops)  # doctest: +SKIP
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.metrics.deletion import rank_units

GROUPS = 10
"""The number of groups that the authors take."""


def group_units(scores: Tensor, count: int = GROUPS) -> Tensor:
    """Group units (n, units) by score: the number of each unit's group, 0 for the highest scores.

    The unit at rank r of n (from 0, equal scores by position) is in group ⌊r · count / n⌋, so that
    groups differ by one unit at most.
    """
    units = scores.shape[-1]
    if not 2 <= count <= units:
        raise WhenceError(
            f"There have to be 2 groups or more, and no more than the {units} units, not {count}."
        )
    return rank_units(scores, "highest") * count // units


def sum_groups(scores: Tensor, groups: Tensor, count: int = GROUPS) -> Tensor:
    """Sum the scores of each group: (n, count) in float64, all 0 where all scores are equal."""
    varied = scores.amax(1, keepdim=True) > scores.amin(1, keepdim=True)
    values = torch.where(varied, scores, 0).double()
    sums = torch.zeros(len(scores), count, dtype=torch.float64, device=scores.device)
    return sums.scatter_add_(1, groups, values)


def compute_saco(sums: Tensor, drops: Tensor) -> Tensor:
    r"""Compute the coefficient (n,), from -1 to 1, from figures of groups, highest scores first.

    Every pair of groups :math:`i < j` weighs :math:`w = s_i - s_j`. It counts as :math:`w` if the
    drops are in the same order, :math:`d_i \ge d_j`, and as :math:`-w` if not:

    .. math:: F = \sum_{i<j} \pm (s_i - s_j) \,\Big/\, \sum_{i<j} |s_i - s_j|

    It is 0 where no two groups differ.

    Args:
        sums: (n, groups): the sum of scores of each group.
        drops: (n, groups): what the target's probability loses when the group is replaced.
    """
    if sums.dim() != 2 or sums.shape != drops.shape:
        raise WhenceError(
            f"Sums and drops have to be (n, groups) both, not {tuple(sums.shape)} and "
            f"{tuple(drops.shape)}."
        )
    if not (sums.isfinite().all() and drops.isfinite().all()):
        raise WhenceError("Some sums or drops are NaN or infinite, so that they have no order.")
    first, second = torch.triu_indices(sums.shape[1], sums.shape[1], 1, device=sums.device)
    sums, drops = sums.double(), drops.double()
    weights = sums[:, first] - sums[:, second]
    signed = torch.where(drops[:, first] >= drops[:, second], weights, -weights)
    whole = weights.abs().sum(1)
    return signed.sum(1) / torch.where(whole > 0, whole, 1)
