"""Where in a picture a target lies: a box, one place, or a mask of places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from whence._util.outlines import Point, trace_outlines

Kind = Literal["box", "place", "mask"]
_KINDS = ("box", "place", "mask")
# Outlines of finer masks would not be drawn better.
_FINEST = 128


@dataclass(frozen=True)
class TargetArea:
    """Where in a picture a target lies.

    Attributes:
        kind: ``"box"``, ``"place"`` (one cell of a dense head) or ``"mask"``.
        outlines: Closed polygons of corners, (x, y), as shares of the width and the height of the
            picture that the model saw. Of a mask, a hole has a polygon of its own.
    """

    kind: Kind
    outlines: list[list[Point]]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom, as shares of the width and the height."""
        x, y = zip(*(point for outline in self.outlines for point in outline), strict=True)
        return min(x), min(y), max(x), max(y)

    @classmethod
    def from_bounds(
        cls, left: float, top: float, right: float, bottom: float, kind: Kind = "box"
    ) -> TargetArea:
        """The area of a rectangle."""
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        return cls(kind, [[(float(x), float(y)) for x, y in corners]])

    @classmethod
    def from_mask(cls, mask: Tensor) -> TargetArea | None:
        """The area of the cells of a mask (rows, columns); None if there are none."""
        if not bool(mask.any()):
            return None
        if int(mask.sum()) == 1:
            ((row, column),) = mask.nonzero().tolist()
            rows, columns = mask.shape
            sides = (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
            return cls.from_bounds(*sides, kind="place")
        if max(mask.shape) > _FINEST:
            shares = mask.detach().float().cpu()[None, None]
            rows, columns = (min(side, _FINEST) for side in mask.shape)
            mask = F.adaptive_avg_pool2d(shares, (rows, columns))[0, 0]
            mask = mask >= min(0.5, float(mask.max()))
        return cls("mask", trace_outlines(mask.detach().bool().cpu().numpy()))

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> TargetArea:
        """Read what `dataclasses.asdict` gave, as JSON keeps it.

        Raises:
            ValueError: It is no area.
        """
        outlines = [[(float(x), float(y)) for x, y in one] for one in saved["outlines"]]
        if saved["kind"] not in _KINDS or not outlines or not all(outlines):
            raise ValueError(f"it has an area of kind {saved['kind']!r}")
        return cls(saved["kind"], outlines)
