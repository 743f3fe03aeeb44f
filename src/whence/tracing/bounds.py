"""Bounds of memory of a recorded forward pass."""

from __future__ import annotations

import math
from typing import NamedTuple

# So many blocks may keep maps as large as those that are in memory together elsewhere.
_BLOCKS_WITH_MAPS = 4


class Bounds(NamedTuple):
    """How many bytes a recorded forward pass may keep.

    Attributes:
        all: All operations; more is an error.
        map: Maps of one attention that are in memory together.
        segment: Operations at a time; what is beyond is freed, and computed again when it is read.
        block: The same for operations of blocks, which are computed again by themselves.
        kept_map: The maps of an attention that keeps them; None if it is the bound of all maps.
    """

    all: float = math.inf
    map: float = math.inf
    segment: float = math.inf
    block: float = math.inf
    kept_map: float | None = None

    def share_among(self, blocks: int) -> Bounds:
        """The same bounds, with maps kept only where those of all blocks can be."""
        share = min(1.0, _BLOCKS_WITH_MAPS / max(1, blocks))
        return self._replace(kept_map=self.map * share)
