"""SkipAddition: the part that an operation has in the sum of a skip connection and its branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from whence.tracing.ops.base import Operation


@dataclass(eq=False)
class SkipSum:
    """What the operations share that add up one skip connection, z = z_1 + … + z_n.

    Attributes:
        count: How many terms there are, n.
        agree: For each term, where it does not have the opposite sign of the sum, once a backward
            pass has met the whole. Operations that make partial sums are passed later, when the
            whole may have been freed.
    """

    count: int
    agree: tuple[Tensor, ...] = ()


@dataclass(eq=False)
class SkipAddition:
    """The part of one operation in a sum of a skip connection and its branches.

    Attributes:
        summands: For each that the operation adds, the number of the term that it is, or is a part
            of; or the operation that made it, if it is a partial sum.
        is_last: Whether the operation completes the sum.
        shared: What it shares with the others.
        stack_dim: The dimension along which summands are stacked; None if they are two tensors.
    """

    summands: tuple[int | Operation, ...]
    is_last: bool
    shared: SkipSum
    stack_dim: int | None = None

    @property
    def is_alone(self) -> bool:
        """Whether one operation adds all terms."""
        return self.is_last and all(isinstance(one, int) for one in self.summands)
