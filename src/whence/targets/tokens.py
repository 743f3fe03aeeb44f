"""Targets of models with one output for each token: a token at a position, and a span of tokens."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex, TypeAlias, cast

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.targets.base import (
    Place,
    Scalar,
    Target,
    TargetContext,
    pick_rows,
    require_for_each,
)
from whence.targets.token_logits import (
    SpanScalar,
    TokenLogits,
    TokenRows,
    TokenScalar,
    find_sequence,
    list_real_tokens,
)
from whence.targets.vocabulary import OneToken, Vocabulary

Position: TypeAlias = SupportsIndex | Sequence[SupportsIndex]


def token(
    position: Position = -1,
    token: OneToken | Sequence[OneToken] | None = None,
    prompt: Position | None = None,
) -> Target:
    """The logit of a token of the vocabulary, or of a label, at a position of the output.

    Args:
        position: Counts real tokens, not padding, from 0 or from the end; or one for each sample.
            A language model tells at each position which token comes next; a masked language
            model or a tagger speaks of the token at the position itself.
        token: The token by id or by its text; or one for each sample. None: the highest.
        prompt: How many tokens the prompt has, or one number for each sample: those after it were
            generated, which `tam` and `flashtrace` treat apart. None: all up to the position.
    """
    positions = _list_numbers(position, "position")
    lengths = None if prompt is None else _list_numbers(prompt, "prompt")
    if token is None or isinstance(token, str) or hasattr(token, "__index__"):
        return TokenTarget(positions, token, prompt=lengths)
    return TokenTarget(positions, tuple(token), prompt=lengths)


def span(
    start: SupportsIndex, stop: SupportsIndex | None = None, prompt: SupportsIndex | None = None
) -> Target:
    """The log-probability of the input's own tokens start ... stop - 1, given what stands before.

    It is the sum over these tokens, from one forward pass: the explanation of a whole answer.

    Args:
        start: The first token, counted among real tokens from 0 or from the end; not the first of
            all, before which nothing stands.
        stop: The token after the last; from the end if negative. None: up to the end.
        prompt: How many tokens the prompt has: those between it and the span were generated, such
            as a model's reasoning, which `flashtrace` traces on. None: all up to the span.
    """
    first = _list_numbers(start, "start")
    end = None if stop is None else _list_numbers(stop, "stop")
    length = None if prompt is None else _list_numbers(prompt, "prompt")
    if isinstance(first, tuple) or isinstance(end, tuple) or isinstance(length, tuple):
        raise WhenceError("A span has one start, one stop and one prompt, for all samples.")
    return SpanTarget(first, end, length)


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


@dataclass(frozen=True)
class TokenTarget(TokenRows):
    """A token at a position.

    Attributes:
        position: Among real tokens; or one for each sample.
        token: By id or text, or one for each sample; None for the highest.
        top: How many of the highest.
        prompt: How many tokens the prompt has; or one for each sample.
    """

    position: int | tuple[int, ...] = -1
    token: OneToken | tuple[OneToken, ...] | None = None
    top: int = 1
    prompt: int | tuple[int, ...] | None = None

    @override
    def select_samples(self, rows: slice, batch: int) -> TokenTarget:
        position, token, prompt = self.position, self.token, self.prompt
        if isinstance(prompt, tuple):
            require_for_each(prompt, batch, "prompts")
            prompt = prompt[rows]
        if isinstance(position, tuple):
            require_for_each(position, batch, "positions")
            position = position[rows]
        if isinstance(token, tuple):
            require_for_each(token, batch, "tokens")
            token = token[rows]
        return replace(self, position=position, token=token, prompt=prompt)

    @override
    def make_place(self, context: TargetContext) -> Place:
        return TokenLogits(context, self)

    @override
    def list_rows(self, context: TargetContext, length: int) -> list[list[int]]:
        """For each sample, where its position stands in the padded sequence of this length."""
        real, position = list_real_tokens(context, length), self.position
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
        place = cast(TokenLogits, place)
        vocabulary = Vocabulary(context, read.shape[2])
        rows = [row - place.start for (row,) in self.list_rows(context, place.length)]
        if self.token is None:
            logits = pick_rows(read, torch.arange(context.batch, device=read.device), rows)
            ids = logits.topk(vocabulary.check_top(self.top)).indices.T.tolist()
        else:
            tokens = self.token if isinstance(self.token, tuple) else (self.token,) * context.batch
            require_for_each(tokens, context.batch, "tokens")
            ids = [[vocabulary.find_id(one) for one in tokens]]
        ends = self._list_ends(context, place, rows)
        return [
            TokenScalar(place, rows, of, list(map(vocabulary.get_name, of)), ends) for of in ids
        ]

    def _list_ends(self, context: TargetContext, place: TokenLogits, rows: list[int]) -> list[int]:
        """For each sample, where its prompt ends: the place of the first token after it."""
        told = [row + place.start + 1 for row in rows]
        if self.prompt is None:
            return told
        prompts = self.prompt if isinstance(self.prompt, tuple) else (self.prompt,) * context.batch
        require_for_each(prompts, context.batch, "prompts")
        real = list_real_tokens(context, place.length)
        return [
            _find_prompt_end(tokens, length, tokens.index(at - 1) + 1)
            for tokens, length, at in zip(real, prompts, told, strict=True)
        ]


def _find_prompt_end(tokens: list[int], prompt: int, most: int) -> int:
    """Where the first token after a prompt of so many tokens stands in the padded sequence."""
    if not 1 <= prompt <= most:
        raise WhenceError(
            f"prompt={prompt} is no number of tokens before what is explained: that is 1 to {most}."
        )
    return tokens[prompt - 1] + 1


@dataclass(frozen=True)
class SpanTarget(TokenRows):
    """The tokens of the input from a start to before a stop."""

    start: int
    stop: int | None
    prompt: int | None = None

    @override
    def make_place(self, context: TargetContext) -> Place:
        if not context.generates:
            raise WhenceError(
                "A span is a target of language models that tell the next token. Here, name a "
                "token: target=targets.token(position, token)."
            )
        return TokenLogits(context, self)

    @property
    def _end(self) -> str:
        return "the end" if self.stop is None else str(self.stop)

    @override
    def list_rows(self, context: TargetContext, length: int) -> list[list[int]]:
        """For each sample, the rows that tell its tokens: each before the token itself."""
        return [[tokens[at - 1] for at in span] for tokens, span in self._list(context, length)]

    def _list(self, context: TargetContext, length: int) -> list[tuple[list[int], range]]:
        """For each sample, where its tokens stand, and which of them are the span."""
        listed = []
        for sample, tokens in enumerate(list_real_tokens(context, length)):
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
        place = cast(TokenLogits, place)
        ids = find_sequence(context, place.length).ids
        if ids is None:
            raise WhenceError(
                "The tokens of a span are not known, since the model takes embeddings; give token "
                "ids."
            )
        vocabulary = Vocabulary(context, read.shape[2])
        rows, own, names, ends = [], [], [], []
        for sample, (tokens, span) in enumerate(self._list(context, place.length)):
            length = span.start if self.prompt is None else self.prompt
            ends.append(_find_prompt_end(tokens, length, span.start))
            rows.append([tokens[at - 1] - place.start for at in span])
            own.append([int(ids[sample, tokens[at]]) for at in span])
            names.append(vocabulary.get_text(own[-1]))
        return [SpanScalar(place, rows, own, names, ends)]
