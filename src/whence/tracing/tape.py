"""What the operations of one recorded forward pass share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.compiled.program import is_noted, is_written_down

if TYPE_CHECKING:
    from whence.rules import RuleSet
    from whence.tracing.ops.operations import Operation


class Tape:
    """What the operations of one trace share: how they are being read just now.

    Attributes:
        rules: The rule set of a relevance reading; None while gradients are read.
        batch: Number of samples, the size of the leading dimension.
        forward_only: Whether nothing will be read, so that operations let go of what they keep.
        kept_bytes: How much the outputs of operations take.
        exact: Whether rules are to compute what cancels without shortcuts.
    """

    def __init__(self) -> None:
        self.rules: RuleSet | None = None
        self.batch = 0
        self.forward_only = False
        self.kept_bytes = 0
        self.exact = False
        self._doubts: list[Tensor] = []
        self._operations: list[weakref.ref[Operation]] = []

    def add(self, operation: Operation) -> None:
        """Enter an operation, so that `preserve` can find what it keeps."""
        operation.tape = self
        operation.index = len(self._operations)
        self._operations.append(weakref.ref(operation))

    def doubts(self, doubt: Tensor) -> bool:
        """Whether a rule should not take its shortcut.

        To look at a tensor of a GPU is to wait for it, and what is written down for later has no
        values yet. There, and in what is compared with it, doubts are gathered, the shortcut is
        taken, and `in_doubt` says in the end if it should not have been.
        """
        if doubt.device.type == "cpu" and not (is_noted() or is_written_down(doubt)):
            return bool(doubt)
        self._doubts.append(doubt)
        return False

    def in_doubt(self) -> bool:
        """Whether a shortcut was taken since the last question that should not have been."""
        doubt = self.doubt()
        return doubt is not None and bool(doubt)

    def doubt(self) -> Tensor | None:
        """The same as a tensor, which need not be waited for; None if there was no shortcut."""
        doubts, self._doubts = self._doubts, []
        return torch.stack(doubts).any() if doubts else None

    def preserve(self, tensor: Tensor) -> None:
        """Copy what operations keep of this tensor's memory, which is about to be overwritten."""
        for reference in () if self.forward_only else self._operations:
            operation = reference()
            if operation is not None:
                operation.preserve(tensor)
