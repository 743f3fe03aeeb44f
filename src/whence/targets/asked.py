"""Target, against and classes as a user gives them, made ready to be resolved."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from whence.errors import WhenceError
from whence.targets.base import Target, TargetContext
from whence.targets.classes import Classes, ClassTarget, is_one_class, resolve_classes
from whence.targets.classes import select_samples as select_classes
from whence.targets.function import FunctionTarget
from whence.targets.label import LabelTarget
from whence.targets.scalars import ClassScalars, Contrast, Readout, ReadScalars
from whence.targets.tokens import TokenTarget

TargetFunction: TypeAlias = Callable[[Any, Any], Tensor]
OneTarget: TypeAlias = Target | TargetFunction
AnyTarget: TypeAlias = ClassTarget | OneTarget | Iterable[OneTarget]
"""A class, token, `Target` or function; or one for each sample."""
SeveralTargets: TypeAlias = Classes | Iterable[OneTarget]
"""Several of these, or a number k for the top k."""


@dataclass(frozen=True)
class AskedClasses:
    """Classes of a classifier.

    Attributes:
        target: The class, or one for each sample; None for the predicted one.
        classes: Instead of target, several; or a number k for the top k.
        against: The class whose logit is subtracted, or one for each sample.
    """

    target: ClassTarget | None = None
    classes: Classes | None = None
    against: ClassTarget | None = None

    @property
    def is_one(self) -> bool:
        """Whether one target was asked for, rather than a list, even of one."""
        return self.classes is None

    @property
    def top_count(self) -> int | None:
        """How many of the highest classes are asked for; None if classes are named."""
        if self.target is None and self.classes is None:
            return 1
        return None if self.target is not None else read_count(self.classes)

    def select_samples(self, rows: slice, batch: int) -> AskedClasses:
        """What is asked of some of the samples."""
        target, classes = select_classes(self.target, self.classes, rows, batch)
        against, _ = select_classes(self.against, None, rows, batch)
        return AskedClasses(target, classes, against)

    def resolve(
        self, logits: Tensor, names: Mapping[int, str], multi_label: bool = False
    ) -> ClassScalars:
        """Find the classes, given logits, (batch, classes), and the names of classes.

        Raises:
            WhenceError: There are no such classes.
        """
        classes = self.resolve_classes(logits, names)
        if self.against is None:
            return ClassScalars(classes, None, multi_label)
        against = self.resolve_against(logits, names)
        same = (classes == against).nonzero()
        if len(same):
            index = int(against[same[0, 0]])
            raise WhenceError(
                f"A class is explained against another one, and both are class {index} here"
                f"{f', {names[index]!r}' if index in names else ''}. Name another target or "
                f"against; without a target it is the predicted class."
            )
        return ClassScalars(classes, against.expand_as(classes), multi_label)

    def resolve_classes(self, logits: Tensor, names: Mapping[int, str]) -> Tensor:
        """Find the explained classes, (batch, n)."""
        return resolve_classes(logits, names, self.target, self.classes)

    def resolve_against(self, logits: Tensor, names: Mapping[int, str]) -> Tensor:
        """Find the classes that are subtracted, (batch, 1)."""
        return resolve_classes(logits, names, self.against)


@dataclass(frozen=True)
class AskedScalars:
    """Any scalars of a model's output.

    Attributes:
        pairs: Each target, and what is subtracted from it.
        is_one: Whether one target was asked for, rather than a list, even of one.
    """

    pairs: tuple[tuple[Target, Target | None], ...]
    is_one: bool

    top_count = None

    @property
    def reads_logits_alone(self) -> bool:
        """Whether nothing is looked at that a model returns beside its logits."""
        every = (one for pair in self.pairs for one in pair if one is not None)
        return all(one.reads_logits_alone for one in every)

    def select_samples(self, rows: slice, batch: int) -> AskedScalars:
        """What is asked of some of the samples."""
        if rows == slice(0, batch):
            return self
        pairs = tuple(
            (target.select_samples(rows, batch), against and against.select_samples(rows, batch))
            for target, against in self.pairs
        )
        return dataclasses.replace(self, pairs=pairs)

    def make_readout(self, context: TargetContext) -> Readout:
        """What reads the targets in a model's output."""
        return Readout([one for pair in self.pairs for one in pair if one is not None], context)

    def resolve(self, readout: Readout, outputs: Tensor) -> ReadScalars:
        """Find the scalars, given what was read of the model's output.

        Raises:
            WhenceError: The model has no such targets.
        """
        resolved = iter(readout.resolve(outputs))
        contrasts = []
        for _, against in self.pairs:
            found = next(resolved)
            (other,) = (None,) if against is None else next(resolved)
            contrasts += [Contrast(one, other) for one in found]
        for one in contrasts:
            if one.against is not None and _are_equal(one, readout, outputs):
                raise WhenceError(
                    f"A target is explained against another one, and both are "
                    f"{one.target.names[0]!r}."
                )
        return ReadScalars(readout, contrasts)


def _are_equal(one: Contrast, readout: Readout, outputs: Tensor) -> bool:
    """Whether target and against are the same scalar of some sample."""
    seeds = ReadScalars(readout, [one]).make_seeds(outputs)
    return not bool(seeds.flatten(2).any(2).all())


def parse_targets(
    target: AnyTarget | None,
    against: AnyTarget | None,
    classes: SeveralTargets | None,
    generates: bool,
) -> AskedClasses | AskedScalars:
    """Make what a user asks for ready to be resolved.

    Args:
        target: What to explain; None for the model's own decision.
        against: What to subtract from it.
        classes: Instead of target, several; or a number k for the top k.
        generates: Whether the model generates text, so that a class is the next token.

    Raises:
        WhenceError: It cannot be understood.
    """
    if target is not None and classes is not None:
        raise WhenceError("Give either target or classes, not both.")
    given = [target, against, classes]
    if not generates and not any(map(_holds_target, given)):
        return AskedClasses(target, classes, against)  # type: ignore[arg-type]
    if classes is None:
        one = _make_target(target, generates)
        return AskedScalars(((one, _make_against(one, against, generates)),), is_one=True)
    count = read_count(classes)
    if count is not None:
        if not generates:
            raise WhenceError("The top classes cannot be explained against such a target.")
        top = TokenTarget(top=count)
        return AskedScalars(((top, _make_against(top, against, generates)),), is_one=False)
    alone = isinstance(classes, str) or _is_target(classes)
    listed: list[Any] = [classes] if alone else list(classes)  # type: ignore[arg-type]
    if not listed:
        raise WhenceError("Name at least one target.")
    if not any(_is_target(one) or is_one_class(one) for one in listed):
        if len({len(row) for row in listed}) > 1:
            raise WhenceError("Name as many targets for each sample.")
        listed = [list(column) for column in zip(*listed, strict=True)]
    made = [_make_target(one, generates) for one in listed]
    pairs = tuple((one, _make_against(one, against, generates)) for one in made)
    return AskedScalars(pairs, is_one=False)


def _make_against(target: Target, against: AnyTarget | None, generates: bool) -> Target | None:
    """What is subtracted from a target; a plain token or class is at the target's own place."""
    if against is None:
        return None
    if isinstance(target, TokenTarget) and not _holds_target(against):
        other = _make_target(against, generates=True)
        if isinstance(other, TokenTarget):
            return dataclasses.replace(other, position=target.position)
    if not _is_target(against) and is_one_class(against):
        return target.relabel(against) or _make_target(against, generates)
    return _make_target(against, generates)


def _make_target(value: Any, generates: bool) -> Target:
    """One target, of a target, a function, a class or token, or one of these for each sample."""
    if isinstance(value, Target):
        return value
    if callable(value):
        return FunctionTarget(value)
    if value is None or is_one_class(value):
        return TokenTarget(token=value) if generates else LabelTarget(value)
    listed = list(value)
    if all(isinstance(one, TokenTarget) for one in listed):
        return _join_tokens(listed)
    if generates and all(map(is_one_class, listed)):
        return TokenTarget(token=tuple(listed))
    raise WhenceError(
        "One target for each sample is possible for classes and tokens; otherwise give one for all "
        "samples. A function may treat samples differently."
    )


def _join_tokens(listed: Sequence[TokenTarget]) -> TokenTarget:
    """One target of tokens, of one for each sample."""
    positions = [one.position for one in listed if isinstance(one.position, int)]
    tokens = [one.token for one in listed if not isinstance(one.token, tuple)]
    if len(positions) < len(listed) or len(tokens) < len(listed):
        raise WhenceError("A target for one sample has one position and one token.")
    named = [one for one in tokens if one is not None]
    if named and len(named) < len(tokens):
        raise WhenceError("Name the token for each sample, or for none.")
    return TokenTarget(tuple(positions), tuple(named) or None)


def _is_target(value: object) -> bool:
    return isinstance(value, Target) or (callable(value) and not isinstance(value, Tensor))


def _holds_target(value: object) -> bool:
    if _is_target(value):
        return True
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and any(map(_is_target, value))
    )


def read_count(classes: object) -> int | None:
    """The number k of the top k classes; None if classes are named."""
    if isinstance(classes, str | bool) or not hasattr(classes, "__index__"):
        return None
    return operator.index(classes) if getattr(classes, "ndim", 0) == 0 else None
