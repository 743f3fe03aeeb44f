"""Logits of models with one row of them for each token, and scalars that are read there."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.sending import send
from whence.errors import WhenceError
from whence.targets.base import (
    LogitScalar,
    Place,
    Scalar,
    Target,
    TargetContext,
    TokenNames,
    TokenSequence,
    pick_rows,
)
from whence.targets.scalars import ReadScalars, Scalars


class TokenRows(Target):
    """A target that is read in some rows of the logits of tokens."""

    reads_logits_alone = True

    @abstractmethod
    def list_rows(self, context: TargetContext, length: int) -> list[list[int]]:
        """For each sample, its rows in the padded sequence of this length."""


class TokenLogits(Place):
    """Neighbouring rows of the logits that a model gives for each token of a sequence.

    Attributes:
        length: Of the sequence, once it was read.
        start: The first of the rows, once they were read.
        whole: (batch, tokens, vocabulary), the logits at every token, if a method needs them.
    """

    key = "tokens"

    def __init__(self, context: TargetContext, target: TokenRows) -> None:
        self._context, self._targets = context, [target]
        self._rows: slice | None = None
        self.length = self.start = 0
        self.whole: Tensor | None = None

    @property
    def sequence(self) -> TokenSequence:
        """The tokens that the logits belong to, once these were read."""
        return find_sequence(self._context, self.length)

    @property
    def tokenizer(self) -> TokenNames | None:
        """Names the tokens."""
        return self._context.tokenizer

    @override
    def merge(self, other: Place) -> None:
        self._targets += cast(TokenLogits, other)._targets

    @override
    def find(self, returned: Any) -> Tensor:
        logits = self._context.find_logits(returned)
        if not isinstance(logits, Tensor) or logits.dim() != 3:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise WhenceError(
                f"Tokens and spans are targets of models that give logits of shape (batch, tokens, "
                f"vocabulary); this one gives {shape}. Name a class instead, by index or name."
            )
        return logits

    @override
    def read(self, returned: Any) -> Tensor:
        logits = self.find(returned)
        if self._rows is None:
            self.length = logits.shape[1]
            lists = [t.list_rows(self._context, self.length) for t in self._targets]
            rows = [row for of_target in lists for of_sample in of_target for row in of_sample]
            self.start = min(rows)
            self._rows = slice(self.start, max(rows) + 1)
        if self._context.keeps_logits:
            self.whole = logits.detach()
        return logits[:, self._rows]


def find_token_logits(scalars: Scalars) -> Tensor | None:
    """The logits at every token, (batch, tokens, vocabulary), if scalars are read there."""
    if not isinstance(scalars, ReadScalars):
        return None
    place = scalars.contrasts[0].target.place
    return place.whole if isinstance(place, TokenLogits) else None


def find_sequence(context: TargetContext, length: int) -> TokenSequence:
    """Find the sequence that logits of so many tokens belong to."""
    for sequence in context.sequences:
        if sequence.mask.shape[1] == length:
            return sequence
    return TokenSequence(torch.ones(context.batch, length, dtype=torch.bool))


def list_real_tokens(context: TargetContext, length: int) -> list[list[int]]:
    """For each sample, where its real tokens stand in the padded sequence."""
    mask = find_sequence(context, length).mask.cpu()
    return [row.nonzero()[:, 0].tolist() for row in mask]


@dataclass
class TokenScalar(LogitScalar):
    """The logit of a token at a row.

    Attributes:
        place: Where it is read.
        rows: For each sample, its row of what the place holds.
        indices: For each sample, the token's id.
        names: For each sample, the token's text.
        prompt_ends: For each sample, where the first token after the prompt stands.
    """

    place: TokenLogits
    rows: list[int]
    indices: list[int]
    names: list[str]
    prompt_ends: list[int]

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        return pick_rows(read, samples, self.rows)

    @override
    def centered_values(self, read: Tensor, samples: Tensor, *, by_rules: bool) -> Tensor:
        logits = self.logits(read, samples)
        values = super().centered_values(read, samples, by_rules=by_rules)
        return values - logits.mean(1) if logits.shape[1] > 1 else values

    def get_last_row(self, sample: int) -> int:
        """The position of a sample's sequence that it is read at."""
        return self.rows[sample] + self.place.start


class SpanScalar(Scalar):
    """The log-probability of tokens at rows.

    Attributes:
        prompt_ends: For each sample, where the first token after the prompt stands.
    """

    def __init__(
        self,
        place: TokenLogits,
        rows: list[list[int]],
        ids: list[list[int]],
        names: list[str],
        prompt_ends: list[int],
    ) -> None:
        self.place: TokenLogits = place
        self.names, self.indices, self.prompt_ends = names, [0] * len(names), prompt_ends
        self._rows, self._ids = rows, ids

    @override
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        longest = max(map(len, self._rows))
        rows, ids, kept = (
            send([row + [0] * (longest - len(row)) for row in lists], read.device)
            for lists in (self._rows, self._ids, [[1] * len(row) for row in self._rows])
        )
        number = torch.arange(len(read), device=read.device)[:, None]
        # In single precision at least: the sum runs over a whole vocabulary.
        logits = read[number, rows[samples]]
        chances = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        each = chances.gather(2, ids[samples][..., None])[..., 0]
        return (each * kept[samples]).sum(1)

    @override
    def probabilities(self, read: Tensor, samples: Tensor) -> Tensor:
        return self.values(read, samples).exp()

    def get_last_row(self, sample: int) -> int:
        """The last position of a sample's sequence that it is read at."""
        return max(self._rows[sample]) + self.place.start
