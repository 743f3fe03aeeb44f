"""Evidence that is returned with an explanation, after the trace it was read from is gone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.evidence.evidence import Evidence
from whence.evidence.kinds import KINDS
from whence.explanation import KeptEvidence

_OF_CLASSES = ("gradient", "relevance")


def keep_evidence(groups: Sequence[Evidence], one_target: bool) -> KeptEvidence:
    """What methods worked with, of several groups of classes as one.

    Args:
        groups: The evidence of each group of classes, of the same trace.
        one_target: Whether there is a single class, which gets no dimension of its own; classes
            come after the batch otherwise.
    """

    def join(values: Sequence[Tensor]) -> Tensor:
        whole = torch.cat(list(values)).movedim(0, 1)
        return whole[:, 0] if one_target else whole

    kept = KeptEvidence(pooling=join([group.pooling for group in groups]))
    groups = [group.recorded_anew or group for group in groups]
    first = groups[0]
    for kind in (set(first.needs) & set(KINDS)) - {"blocks", "forwards"}:
        if not kind.endswith(_OF_CLASSES):
            setattr(kept, kind, getattr(first, kind))
        else:
            lists = zip(*(getattr(group, kind) for group in groups), strict=True)
            setattr(kept, kind, [join(values) for values in lists])
    if "gradient" not in first.needs:
        # Gradients that the method does not work with are kept as plain ones.
        plain = zip(*(group.derive({"gradient"}).gradient for group in groups), strict=True)
        kept.gradient = [join(values) for values in plain]
    return kept
