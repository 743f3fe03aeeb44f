"""The registry of methods: find a method by name, describe it, build it from its options."""

import dataclasses
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from whence import rules
from whence._util.near_names import suggest_names
from whence.errors import WhenceError
from whence.evidence import KINDS, Evidence
from whence.rules import RuleSet

_AT_THE_INPUT = ("inputs", "input_gradient", "input_relevance", "forwards")
OptionValue = bool | int | float | str | tuple[int | float | str, ...] | None


class Method:
    """A method: a frozen dataclass whose fields are its options, called with its evidence.

    The first line of its docstring says what it is in a sentence.

    Attributes:
        needs: Kinds of evidence, of `whence.evidence.KINDS`.
        citation: Authors, title, where and when it was published.
        cost: How many forward passes' worth of work it is, as a number or a formula of its options.
        class_specific: Whether different classes get different explanations.
        signed: Whether scores below zero speak against the class.
        inputs: What it explains: ``"image"``, ``"text"`` or both; or only an ``"image prompt"``
            of a language model that reads images between its words.
        streamed: Whether it reads attention maps by `Evidence.fuse_heads` alone, so that they need
            not all be in memory at once.
        sums_maps_of_texts: Whether it reads those of a text by `Evidence.sum_queries`, so that they
            need not be in memory at all.
        centers_logits: Whether a logit is explained less the mean of those it competes with.
        locates_by: The options of its reading that says where a target lies, if it has one.
        needs_one_sequence: Whether it refuses windows, merged tokens and several sequences.
        unsteady_types: Types of a model in which scores rank otherwise than in float32: where a
            rank correlation below 0.99 was measured, or none was.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    citation: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    class_specific: ClassVar[bool] = True
    signed: ClassVar[bool] = False
    inputs: ClassVar[tuple[str, ...]] = ("image", "text")
    streamed: ClassVar[bool] = False
    sums_maps_of_texts: ClassVar[bool] = False
    centers_logits: ClassVar[bool] = False
    locates_by: ClassVar[tuple[tuple[str, OptionValue], ...]] = ()
    needs_one_sequence: ClassVar[bool] = False
    unsteady_types: ClassVar[tuple[torch.dtype, ...]] = ()

    @property
    def completes(self) -> bool:
        """Whether scores sum to the change of the logit from an option ``baseline``."""
        return False

    def scores_copies(self, evidence: Evidence) -> bool:
        """Whether it scores tokens wherever a model reads the input, if it is more than once."""
        del evidence
        return True

    @property
    def scores_tokens(self) -> bool:
        """Whether it reads tokens inside of the model, and not the input itself."""
        return any(kind not in _AT_THE_INPUT for kind in self.needs)

    @property
    def first_layer(self) -> int:
        """The first attention site whose map is read, as an option ``start_layer`` says."""
        first: int = getattr(self, "start_layer", 0)
        return first

    @property
    def gradient_rules(self) -> RuleSet | None:
        """The rules for gradients, as an option ``gradients`` says; None for plain ones."""
        gradients: str = getattr(self, "gradients", "plain")
        return None if gradients == "plain" else rules.get(gradients)

    @property
    def propagates(self) -> bool:
        """Whether it propagates relevance, by a set of rules."""
        return any("relevance" in kind for kind in self.needs)

    def __call__(self, evidence: Evidence) -> Tensor:
        """Score every token, prefix tokens included: (classes, batch, tokens)."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Description:
    """The facts about a method that are known before it runs: attributes of `Method`, and more."""

    name: str
    aliases: tuple[str, ...]
    summary: str  # its idea in a sentence
    citation: str
    needs: tuple[str, ...]
    cost: str
    class_specific: bool
    signed: bool
    inputs: tuple[str, ...]
    options: dict[str, tuple[str, object]]  # each one's type in words, and default

    def __str__(self) -> str:
        specific = "class-specific" if self.class_specific else "the same for every class"
        signed = ", signed" if self.signed else ""
        lines = [
            f"{self.name}: {self.summary}",
            f"  {self.citation}" if self.citation else "",
            f"  explains {' and '.join(self.inputs)}; {specific}{signed}",
            f"  needs {', '.join(KINDS[kind] for kind in self.needs)}" if self.needs else "",
            f"  cost in forward passes: {self.cost}" if self.cost else "",
            *(f"  {name}: {kind} = {default!r}" for name, (kind, default) in self.options.items()),
        ]
        return "\n".join(line for line in lines if line)


@dataclasses.dataclass(frozen=True)
class MethodSpecification:
    """A method's name with its options and relevance rules."""

    label: str  # its name in tables: the text that it was parsed from
    name: str  # its name in the registry
    options: dict[str, OptionValue] = dataclasses.field(default_factory=dict)
    rules: str = "stable"

    def explain_arguments(self) -> dict[str, Any]:  # they go to a call of many types
        """Return the arguments of `Explainer.explain` that select this method."""
        return {"method": self.name, "rules": self.rules, **self.options}

    def to_locating(self) -> "MethodSpecification":
        """The reading of this method that says where a target lies, if it has one of its own."""
        return dataclasses.replace(self, options=dict(get(self.name).locates_by) | self.options)

    @property
    def description(self) -> Description:
        """The description of the method."""
        return describe(self.name)


M = TypeVar("M", bound=type)
_methods: dict[str, type[Method]] = {}
_aliases: dict[str, str] = {}


def register(name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[M], M]:
    """Register a method under a name. Use as a decorator on its dataclass."""

    def decorate(method: M) -> M:
        if not dataclasses.is_dataclass(method) or not issubclass(method, Method):
            raise TypeError(
                f"Method '{name}' must be a dataclass that inherits from whence.methods.Method: "
                f"its fields are its options."
            )
        if unknown := set(method.needs) - set(KINDS):
            raise TypeError(f"Method '{name}' needs {sorted(unknown)}; evidence is {list(KINDS)}.")
        _methods[name] = method
        _aliases.update(dict.fromkeys(aliases, name))
        return method

    return decorate


def available(kind: str | None = None) -> list[str]:
    """List the names of all methods, sorted.

    Args:
        kind: Only those that explain this kind of input: ``"image"``, ``"text"`` or ``"image
            prompt"``.
    """
    return sorted(name for name, one in _methods.items() if kind is None or kind in one.inputs)


def list_at_input(kind: str) -> list[str]:
    """List the methods that read only the input, so that they explain models without attention.

    Args:
        kind: Of the input: ``"image"`` or ``"text"``. The random baseline is left out.
    """
    names = (name for name in available(kind) if name != "random")
    return [name for name in names if not _methods[name]().scores_tokens]


def get(name: str) -> type[Method]:
    """Return the class of a method.

    Raises:
        WhenceError: There is no such method.
    """
    method = _methods.get(_aliases.get(name, name)) if isinstance(name, str) else None
    if method is None:
        near = suggest_names(str(name), [*_methods, *_aliases])
        raise WhenceError(
            f"There is no method '{name}'.{near} Available: {', '.join(available())}."
        )
    return method


def resolve_alias(name: str) -> str:
    """The name under which a method is registered."""
    return _aliases.get(name, name)


def describe(name: str) -> Description:
    """Describe a method: its idea, paper, evidence, cost and options.

    Raises:
        WhenceError: There is no such method.
    """
    method = get(name)
    known = resolve_alias(name)
    return Description(
        name=known,
        aliases=tuple(alias for alias, of in _aliases.items() if of == known),
        summary=(inspect.getdoc(method) or "").split("\n\n")[0].replace("\n", " "),
        citation=method.citation,
        needs=method.needs,
        cost=method.cost,
        class_specific=method.class_specific,
        signed=method.signed,
        inputs=method.inputs,
        options={
            name: (describe_type(kind), default)
            for name, (kind, default) in _list_options(method).items()
        },
    )


def build(name: str, options: Mapping[str, object]) -> Method:
    """Build a method with its options.

    Raises:
        WhenceError: The method has no such option, or the value is of the wrong type, or no number
            to compute with.
    """
    method = get(name)
    for option, value in options.items():
        check_option(name, option, value)
    options = {option: _to_python(value) for option, value in options.items()}
    try:
        built = method(**options)
    except ValueError as error:
        if isinstance(error, WhenceError):
            raise
        raise WhenceError(f"Method '{name}': {error}") from error
    for option, value in options.items():
        if not _is_finite(value):
            raise WhenceError(
                f"{option}={value!r} of method '{name}' must be a finite number of at most 64 bits."
            )
    return built


def find_option_type(name: str, option: str) -> object:
    """Return the type of a method's option; raise an error if there is none."""
    options = _list_options(get(name))
    if option not in options:
        listed = ", ".join(options) or "none"
        raise WhenceError(f"Method '{name}' has no option '{option}'. Its options: {listed}.")
    return options[option][0]


_get_hints = functools.cache(typing.get_type_hints)


def _list_options(method: type[Method]) -> dict[str, tuple[object, object]]:
    """List a method's options with their types and defaults."""
    hints = _get_hints(method)  # type: ignore[arg-type]
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    return {field.name: (hints[field.name], field.default) for field in fields}


def check_option(name: str, option: str, value: object) -> None:
    """Raise an error if a value is not of the type of a method's option."""
    kind = find_option_type(name, option)
    if not is_of_type(value, kind):
        raise WhenceError(
            f"Option '{option}' of method '{name}' must be {describe_type(kind)}, not {value!r}."
        )


def is_of_type(value: object, kind: object) -> bool:
    """Whether a value is of a type: a class, a Literal, a union of these, or a tuple of one."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (typing.Union, types.UnionType):
        return any(is_of_type(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(is_of_type(one, inner[0]) for one in value)
    if isinstance(value, bool):
        return kind is bool
    if kind is int:
        return isinstance(value, numbers.Integral)
    if kind is float:
        return isinstance(value, numbers.Real)
    return isinstance(kind, type) and isinstance(value, kind)


def _to_python(value: object) -> object:
    """Convert a number of NumPy to one of Python, which can be saved."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _is_finite(value: object) -> bool:
    """Whether a value holds no number that is NaN, infinite or beyond 64 bits."""
    if isinstance(value, tuple | list):
        return all(map(_is_finite, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return not isinstance(value, float) or math.isfinite(value)


def describe_type(kind: object) -> str:
    """Describe the type of an option in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(f"'{one}'" for one in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is tuple:
        return {int: "whole numbers", float: "numbers", str: "words"}[inner[0]]
    words: dict[object, str] = {
        type(None): "None",
        str: "a word",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    return words.get(kind) or str(getattr(kind, "__name__", kind))
