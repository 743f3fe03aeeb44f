"""Targets of models with one output for each token: a token at a position, and a span of tokens."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeAlias, cast

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.targets.base import (
    LogitScalar,
    Place,
    Scalar,
    Target,
    TargetContext,
    TokenSequence,
    pick_rows,
    require_for_each,
)
from whence.targets.vocabulary import OneToken, Vocabulary

Position: TypeAlias = SupportsIndex | Sequence[SupportsIndex]


def token(position: Position = -1, token: OneToken | Sequence[OneToken] | None = None) -> Target:
    """The logit of a token of the vocabulary, or of a label, at a position of the output.

    Args:
        position: Counts real tokens, not padding, from 0 or from the end; or one for each sample.
            A language model tells at each position which token comes next; a masked language
            model or a tagger speaks of the token at the position itself.
        token: The token by id or by its text; or one for each sample. None: the highest.
    """
    positions = _list_numbers(position, "position")
    if token is None or isinstance(token, str) or hasattr(token, "__index__"):
        return TokenTarget(positions, token)
    return TokenTarget(positions, tuple(token))


def span(start: SupportsIndex, stop: SupportsIndex | None = None) -> Target:
    """The log-probability of the input's own tokens start ... stop - 1, given what stands before.

    It is the sum over these tokens, from one forward pass: the explanation of a whole answer.

    Args:
        start: The first token, counted among real tokens from 0 or from the end; not the first of
            all, before which nothing stands.
        stop: The token after the last; from the end if negative. None: up to the end.
    """
    first = _list_numbers(start, "start")
    end = None if stop is None else _list_numbers(stop, "stop")
    if isinstance(first, tuple) or isinstance(end, tuple):
        raise WhenceError("A span has one start and one stop, for all samples.")
    return SpanTarget(first, end)


def _list_numbers(value: Position, what: str) -> int | tuple[int, ...]:
    try:
        if isinstance(value, bool):
            raise TypeError
        if isinstance(value, SupportsIndex):
            return operator.index(value)
        return tuple(operator.index(one) for one in value)
    except TypeError:
        message = f"{what} is a whole number, or one for each sample, not {value!r}."
        raise WhenceError(message) from None


class TokenPlace(Place):
    """Neighbouring rows of the logits that a model gives for each token of a sequence.

    Attributes:
        length: Of the sequence, once it was read.
        start: The first of the rows, once they were read.
    """

    key = "tokens"

    def __init__(self, context: TargetContext, target: TokenTarget | SpanTarget) -> None:
        self._context, self._targets = context, [target]
        self._rows: slice | None = None
        self.length = self.start = 0

    @override
    def merge(self, other: Place) -> None:
        self._targets += cast(TokenPlace, other)._targets

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
        return logits[:, self._rows]


def _find_sequence(context: TargetContext, length: int) -> TokenSequence:
    """Find the sequence that logits of so many tokens belong to."""
    for sequence in context.sequences:
        if sequence.mask.shape[1] == length:
            return sequence
    return TokenSequence(torch.ones(context.batch, length, dtype=torch.bool))


def _list_real_tokens(context: TargetContext, length: int) -> list[list[int]]:
    """For each sample, where its real tokens stand in the padded sequence."""
    mask = _find_sequence(context, length).mask.cpu()
    return [row.nonzero()[:, 0].tolist() for row in mask]


@dataclass(frozen=True)
class TokenTarget(Target):
    """A token at a position.

    Attributes:
        position: Among real tokens; or one for each sample.
        token: By id or text, or one for each sample; None for the highest.
        top: How many of the highest.
    """

    position: int | tuple[int, ...] = -1
    token: OneToken | tuple[OneToken, ...] | None = None
    top: int = 1

    @override
    def select_samples(self, rows: slice, batch: int) -> TokenTarget:
        position, token = self.position, self.token
        if isinstance(position, tuple):
            require_for_each(position, batch, "positions")
            position = position[rows]
        if isinstance(token, tuple):
            require_for_each(token, batch, "tokens")
            token = token[rows]
        return replace(self, position=position, token=token)

    @override
    def make_place(self, context: TargetContext) -> Place:
        return TokenPlace(context, self)

    def list_rows(self, context: TargetContext, length: int) -> list[list[int]]:
        """For each sample, where its position stands in the padded sequence of this length."""
        real, position = _list_real_tokens(context, length), self.position
        positions = position if isinstance(position, tuple) else (position,) * context.batch
        require_for_each(positions, context.batch, "positions")
        for sample, (one, tokens) in enumerate(zip(positions, real, strict=True)):
            if not -len(tokens) <= one < len(tokens):
                raise WhenceError(
                    f"Position {one} does not exist: text {sample} of the batch has {len(tokens)} "
                    f"tokens, 0 to {len(tokens) - 1}; from the end, -1 to {-len(tokens)}."
                )
        return [[tokens[one]] for one, tokens in zip(positions, real, strict=True)]

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        place = cast(TokenPlace, place)
        vocabulary = Vocabulary(context, read.shape[2])
        rows = [row - place.start for (row,) in self.list_rows(context, place.length)]
        if self.token is None:
            logits = pick_rows(read, torch.arange(context.batch, device=read.device), rows)
            ids = logits.topk(vocabulary.check_top(self.top)).indices.T.tolist()
        else:
            tokens = self.token if isinstance(self.token, tuple) else (self.token,) * context.batch
            require_for_each(tokens, context.batch, "tokens")
            ids = [[vocabulary.find_id(one) for one in tokens]]
        return [TokenScalar(place, rows, of, list(map(vocabulary.get_name, of))) for of in ids]


@dataclass
class TokenScalar(LogitScalar):
    """The logit of a token at a row.

    Attributes:
        place: Where it is read.
        rows: For each sample, its row of what the place holds.
        indices: For each sample, the token's id.
        names: For each sample, the token's text.
    """

    place: Place
    rows: list[int]
    indices: list[int]
    names: list[str]

    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor:
        return pick_rows(read, samples, self.rows)


@dataclass(frozen=True)
class SpanTarget(Target):
    """The tokens of the input from a start to before a stop."""

    start: int
    stop: int | None

    @override
    def make_place(self, context: TargetContext) -> Place:
        if not context.generates:
            raise WhenceError(
                "A span is a target of language models that tell the next token. Here, name a "
                "token: target=targets.token(position, token)."
            )
        return TokenPlace(context, self)

    @property
    def _end(self) -> str:
        return "the end" if self.stop is None else str(self.stop)

    def list_rows(self, context: TargetContext, length: int) -> list[list[int]]:
        """For each sample, the rows that tell its tokens: each before the token itself."""
        return [[tokens[at - 1] for at in span] for tokens, span in self._list(context, length)]

    def _list(self, context: TargetContext, length: int) -> list[tuple[list[int], range]]:
        """For each sample, where its tokens stand, and which of them are the span."""
        listed = []
        for sample, tokens in enumerate(_list_real_tokens(context, length)):
            start, stop, _ = slice(self.start, self.stop).indices(len(tokens))
            beyond = not -len(tokens) <= self.start < len(tokens) or (self.stop or 0) > len(tokens)
            if start < 1 or stop <= start or beyond:
                raise WhenceError(
                    f"The span from {self.start} to {self._end} does not exist: text {sample} of "
                    f"the batch has {len(tokens)} tokens, so that a span starts at 1 or later and "
                    f"stops after its start, at {len(tokens)} at most."
                )
            listed.append((tokens, range(start, stop)))
        return listed

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        place = cast(TokenPlace, place)
        ids = _find_sequence(context, place.length).ids
        if ids is None:
            raise WhenceError(
                "The tokens of a span are not known, since the model takes embeddings; give token "
                "ids."
            )
        vocabulary = Vocabulary(context, read.shape[2])
        rows, own, names = [], [], []
        for sample, (tokens, span) in enumerate(self._list(context, place.length)):
            rows.append([tokens[at - 1] - place.start for at in span])
            own.append([int(ids[sample, tokens[at]]) for at in span])
            names.append(vocabulary.get_text(own[-1]))
        return [SpanScalar(place, rows, own, names)]


class SpanScalar(Scalar):
    """The log-probability of tokens at rows."""

    def __init__(
        self, place: Place, rows: list[list[int]], ids: list[list[int]], names: list[str]
    ) -> None:
        self.place, self.names, self.indices = place, names, [0] * len(names)
        self._rows, self._ids = rows, ids

    @override
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        longest = max(map(len, self._rows))
        rows, ids, kept = (
            torch.tensor([row + [0] * (longest - len(row)) for row in lists], device=read.device)
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
