"""What `explain` is asked for."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from whence.errors import WhenceError
from whence.methods import Method
from whence.rules import RuleSet


class Request(NamedTuple):
    """What `explain` was asked for, of which its arguments tell more."""

    method: Method
    name: str
    rules: RuleSet
    target: Any
    classes: Any
    keep_evidence: bool
    memory: float | None

    @property
    def highest(self) -> int | None:
        """How many of the highest classes are asked for; None if classes are named."""
        if self.target is None and self.classes is None:
            return 1
        usual = hasattr(self.classes, "__index__") and not isinstance(self.classes, bool)
        one = usual and getattr(self.classes, "ndim", 0) == 0
        return operator.index(self.classes) if one and self.target is None else None


def is_plain(value: Any) -> bool:
    """Whether all that a value is can be read from how it is written."""
    if isinstance(value, Mapping):
        return is_plain(list(value.items()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def check_memory(memory: Any) -> None:
    """Refuse what is no amount of memory.

    Raises:
        WhenceError: It is none.
    """
    number = isinstance(memory, int | float) and not isinstance(memory, bool)
    if memory is not None and not (number and 0 < memory < math.inf):
        raise WhenceError(f"memory is a number of gibibytes above 0, such as 0.5, not {memory!r}.")
