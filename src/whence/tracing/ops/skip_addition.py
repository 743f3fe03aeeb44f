"""SkipAddition: the part that an operation has in the sum of a skip connection and its branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from whence.tracing.ops.base import Operation


@dataclass(eq=False)
class SkipSum:
    """What the operations of one sum share.

    Attributes:
        signs: The signs of the whole sum, once a backward pass has met it: partial sums, which are
            passed later, need them when the whole may have been freed.
    """

    signs: Tensor | None = None


@dataclass(eq=False)
class SkipAddition:
    """The part of one operation in a sum z = z_1 + … + z_n of a skip connection and its branches.

    Attributes:
        partial: For each input of the operation, the one that made it if it is a partial sum of the
            same whole; None if it is one of the terms.
        is_last: Whether the operation completes the sum.
        shared: What it shares with the others.
    """

    partial: tuple[Operation | None, ...]
    is_last: bool
    shared: SkipSum = field(default_factory=SkipSum)

    @property
    def is_alone(self) -> bool:
        """Whether one operation adds all terms."""
        return self.is_last and not any(self.partial)
