"""Target: any scalar of a model's output that can be explained, and what is needed to read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.sending import send
from whence.errors import WhenceError
from whence.targets.areas import TargetArea


class TokenNames(Protocol):
    """The part of a transformers tokenizer that turns texts into ids and back."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Convert a text to ids."""

    def decode(self, ids: list[int]) -> str:
        """Convert ids to a text."""

    def get_vocab(self) -> dict[str, int]:
        """All tokens with their ids."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Convert ids to token strings."""


@dataclass(frozen=True)
class TokenSequence:
    """A sequence of tokens that goes into a model.

    Attributes:
        mask: (batch, tokens), true where a token is no padding.
        ids: (batch, tokens), the token ids; None if the model takes embeddings.
    """

    mask: Tensor
    ids: Tensor | None = None


@dataclass(frozen=True)
class TargetContext:
    """What a target may know of a model and its inputs.

    Attributes:
        batch: Number of samples.
        find_logits: Gets the logits from what the model returns.
        select_inputs: Gives the inputs, as the user gave them, of some samples.
        run: Runs the model on other inputs, and gives what it returns.
        sequences: The sequences of tokens that go in, the one that is decoded first.
        class_names: Names of the model's classes.
        tokenizer: Names tokens.
        generates: Whether the model generates text, so that position p tells the token after p.
        explains_text: Whether the explained input is a text.
        output_stated: Whether the user says what of the output is read.
        keeps_logits: Whether the logits at every token are kept, for a method that needs them.
    """

    batch: int
    find_logits: Callable[[Any], Tensor]
    select_inputs: Callable[[Tensor], Any]
    run: Callable[[Any], Any]
    sequences: Sequence[TokenSequence] = ()
    class_names: Mapping[int, str] = field(default_factory=dict)
    tokenizer: TokenNames | None = None
    generates: bool = False
    explains_text: bool = False
    output_stated: bool = False
    keeps_logits: bool = False


class Place(ABC):
    """Where targets are read in what a model returns. Targets of one place share it."""

    @property
    @abstractmethod
    def key(self) -> object:
        """Places with the same key are the same."""

    def merge(self, other: Place) -> None:  # noqa: B027  # most places read all there is
        """Take over what another place of the same key reads."""

    @abstractmethod
    def find(self, returned: Any) -> Tensor:
        """The whole tensor, (batch, ...)."""

    def read(self, returned: Any) -> Tensor:
        """The part of it that targets need; the same part for any samples."""
        return self.find(returned)


class Scalar(ABC):
    """A target that was resolved: for each sample of a batch, a scalar of what a place holds.

    Attributes:
        place: Where it is read.
        indices: For each sample, the index of the class, label or token; 0 where there is none.
        names: For each sample, its name.
        areas: For each sample, where in the picture it lies; None where that means nothing.
    """

    place: Place
    indices: list[int]
    names: list[str]
    areas: list[TargetArea | None] | None = None

    @abstractmethod
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        """The scalar, (rows,), which autograd can go through.

        Args:
            read: (rows, ...), what the place holds.
            samples: (rows,), which sample of the batch each row is.
        """

    def propagated_values(self, read: Tensor, samples: Tensor) -> Tensor:
        """The scalar whose gradient starts what is propagated by rules, if it is not itself."""
        return self.values(read, samples)

    def centered_values(self, read: Tensor, samples: Tensor, *, by_rules: bool) -> Tensor:
        """One or the other, less the mean of what competes in a softmax, if anything does."""
        return (self.propagated_values if by_rules else self.values)(read, samples)

    def probabilities(self, read: Tensor, samples: Tensor) -> Tensor | None:  # noqa: ARG002
        """The probability of what the scalar stands for, (rows,); None if it has none."""
        return None

    def logits(self, read: Tensor, samples: Tensor) -> Tensor | None:  # noqa: ARG002
        """The logits that it is one of, (rows, classes); None if there are none."""
        return None


class LogitScalar(Scalar):
    """A scalar that is one of some logits."""

    @override
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        return pick_columns(self.logits(read, samples), samples, self.indices)

    @override
    def probabilities(self, read: Tensor, samples: Tensor) -> Tensor | None:
        logits = self.logits(read, samples)
        if logits.shape[1] < 2:
            return None  # a lone logit is a quantity
        chances = self.to_probabilities(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        return pick_columns(chances, samples, self.indices)

    def to_probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of all logits, (rows, classes)."""
        return logits.softmax(1)

    @abstractmethod
    @override
    def logits(self, read: Tensor, samples: Tensor) -> Tensor: ...


class Target(ABC):
    """A scalar of a model's output that can be explained.

    Attributes:
        reads_logits_alone: Whether nothing else that the model returns is looked at.
    """

    reads_logits_alone = False

    @abstractmethod
    def make_place(self, context: TargetContext) -> Place:
        """Where it is read."""

    @abstractmethod
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        """Decide what is left to the model, such as the highest class; one scalar, or several.

        Args:
            place: Where it is read.
            read: (batch, ...), what the place holds.
            context: What is known of the model and its inputs.
        """

    def select_samples(self, rows: slice, batch: int) -> Target:  # noqa: ARG002
        """The target of some of the samples."""
        return self

    def relabel(self, label: object) -> Target | None:  # noqa: ARG002
        """The target of another class at the same place; None if it has no place of its own."""
        return None


@dataclass(frozen=True)
class LogitsPlace(Place):
    """The logits in what a model returned, as they are."""

    find_logits: Callable[[Any], Tensor] = field(compare=False)
    key: str = "logits"

    def find(self, returned: Any) -> Tensor:
        """The logits."""
        return self.find_logits(returned)


class LogitsTarget(Target):
    """A target that is read in the logits, as the model returned them."""

    @override
    def make_place(self, context: TargetContext) -> Place:
        return LogitsPlace(context.find_logits)


def pick_rows(read: Tensor, samples: Tensor, positions: Sequence[int]) -> Tensor:
    """Row positions[s] of each sample s: (rows, ...) of (rows, positions, ...)."""
    at = send(positions, read.device)[samples]
    return read[torch.arange(len(read), device=read.device), at]


def pick_columns(logits: Tensor, samples: Tensor, indices: Sequence[int]) -> Tensor:
    """Column indices[s] of each sample s: (rows,) of (rows, columns)."""
    at = send(indices, logits.device)[samples]
    return logits.gather(1, at[:, None])[:, 0]


def require_for_each(values: Sequence[Any], batch: int, what: str) -> None:
    """Refuse lists that do not have one value for each sample.

    Raises:
        WhenceError: The list has another length.
    """
    if len(values) != batch:
        raise WhenceError(f"{len(values)} {what} were given for {batch} sample(s).")
