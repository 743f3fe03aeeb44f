"""How much of one forward pass may stay in memory, and whether attention maps are made at all."""

from __future__ import annotations

import math

from whence.engine.request import Request, bound_forwards_bytes
from whence.engine.targets import is_generative
from whence.evidence.kinds import AT_MAPS
from whence.inputs.arguments import list_tensors

# What can be read of a pass whose operations are computed again, segment by segment; the share of
# the memory that a segment may take.
_IN_SEGMENTS = AT_MAPS.union(
    ("inputs", "input_gradient", "input_relevance", "hidden", "hidden_gradient", "hidden_relevance")
)
_WITHOUT_MAPS = _IN_SEGMENTS - AT_MAPS
_SHARE_OF_A_SEGMENT = 1 / 2
# The share of the memory that blocks may keep of one input: they are cheap to compute again. If the
# user names no memory, no more than these gibibytes, or than a share of the weights' own bytes: who
# has room for a large model has room for some of what it computes. Relevance takes some of it, too.
_SHARE_OF_BLOCKS = 3 / 8
_KEPT_BY_BLOCKS = 3.0
_SHARE_OF_WEIGHTS = 0.75
_SHARE_FOR_GRADIENTS = 0.85


def reads_maps(request: Request) -> bool:
    """Whether maps are read. If not, torch's own kernels, which make none, give all gradients.

    That is so for texts of language models, whose maps are large. The kernels want no padding.
    """
    method, padding = request.method, request.arguments.padding
    if not is_generative(request.subject) or request.keep_evidence:
        return True
    if padding is not None and bool(padding.any()):
        return True
    if not _WITHOUT_MAPS.issuperset(method.needs):
        return not method.sums_maps_of_texts
    return any(one is not None and one.attention_factors is None for one in request.rules_used)


def bound_segments(request: Request) -> tuple[float, float]:
    """How many bytes operations may keep of a pass that cannot be cut by samples; those of blocks.

    Those of blocks keep less: a block is computed again by itself, for others the model runs again.
    """
    if request.keep_evidence or not _IN_SEGMENTS.issuperset(request.method.needs):
        return math.inf, math.inf
    memory = bound_forwards_bytes(request.arguments.main.device, request.memory)
    of_blocks = memory * _SHARE_OF_BLOCKS
    if request.memory is None and of_blocks > _KEPT_BY_BLOCKS * 2**30:
        tensors = {id(one): one.nbytes for one in list_tensors(request.subject.model)}
        alone = request.reads_gradients_alone
        share = _SHARE_FOR_GRADIENTS if alone else _SHARE_OF_WEIGHTS
        most = max(_KEPT_BY_BLOCKS * 2**30, sum(tensors.values()) * share)
        of_blocks = min(of_blocks, most)
    return memory * _SHARE_OF_A_SEGMENT, of_blocks
