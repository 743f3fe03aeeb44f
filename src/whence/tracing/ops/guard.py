"""Guard: looks at the values that decide what is computed."""

from __future__ import annotations

import torch
from torch import Tensor


class Guard:
    """Looks at values for one recorded forward pass and the readings of it.

    A model may branch on a value, and a rule may take a shortcut that is right for most values
    only. By default the value is simply looked at; a compiled program puts another guard in place.

    Attributes:
        sees_values: Whether values can be looked at now.
        exact: Whether rules compute without shortcuts.
    """

    sees_values = True

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self._failures: list[Tensor] = []

    def look_at(self, value: Tensor) -> bool | int | float:
        """The one value of a tensor."""
        return value.item()

    def shortcut_fails(self, failure: Tensor) -> bool:
        """Whether a rule should not take its shortcut, given a tensor that is true if so.

        To look at a tensor of a GPU is to wait for it. There the shortcut is taken, and
        `any_failure` tells in the end if it should not have been.
        """
        return bool(failure) if failure.device.type == "cpu" else self.defer_shortcut(failure)

    def defer_shortcut(self, failure: Tensor) -> bool:
        """Take a shortcut unseen, and keep for the end whether it should not have been taken."""
        self._failures.append(failure)
        return False

    def any_failure(self) -> Tensor | None:
        """True if a shortcut was taken that should not have been; None if none was taken unseen."""
        failures, self._failures = self._failures, []
        return torch.stack(failures).any() if failures else None
