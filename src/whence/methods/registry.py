"""Finding methods by name and building them from options."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from whence.errors import WhenceError
from whence.evidence import KINDS, Evidence


class Method(typing.Protocol):
    """A method: a dataclass whose fields are its options, called with the evidence it needs.

    Attributes:
        needs: Kinds of evidence, of ``"attention"``, ``"gradient"``, ``"relevance"``.
    """

    needs: ClassVar[tuple[str, ...]]

    def __call__(self, evidence: Evidence) -> Tensor:
        """Score every token, prefix tokens included: (classes, batch, tokens)."""
        ...


M = TypeVar("M", bound=type)
_methods: dict[str, type] = {}
_aliases: dict[str, str] = {}


def register(name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[M], M]:
    """Make a method available under a name. Use as a decorator on its dataclass."""

    def decorate(method: M) -> M:
        if not dataclasses.is_dataclass(method):
            raise TypeError(f"Method '{name}' must be a dataclass: its fields are its options.")
        unknown = set(method.needs) - set(KINDS)  # type: ignore[attr-defined]
        if unknown:
            raise TypeError(f"Method '{name}' needs {sorted(unknown)}; evidence is {KINDS}.")
        _methods[name] = method
        _aliases.update(dict.fromkeys(aliases, name))
        return method

    return decorate


def available() -> list[str]:
    """Names of the methods, sorted."""
    return sorted(_methods)


def get(name: str) -> type:
    """The class of a method.

    Raises:
        WhenceError: There is no such method.
    """
    method = _methods.get(_aliases.get(name, name)) if isinstance(name, str) else None
    if method is None:
        near = difflib.get_close_matches(str(name), [*_methods, *_aliases], n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise WhenceError(
            f"There is no method '{name}'.{hint} Available: {', '.join(available())}."
        )
    return method


def build(name: str, options: dict[str, Any]) -> Method:
    """A method with its options set.

    Raises:
        WhenceError: The method has no such option, or the value is of the wrong type.
    """
    method = get(name)
    types = typing.get_type_hints(method)
    known = {field.name: types[field.name] for field in dataclasses.fields(method)}
    for option, value in options.items():
        if option not in known:
            listed = ", ".join(known) or "none"
            raise WhenceError(f"Method '{name}' has no option '{option}'. Its options: {listed}.")
        wanted = known[option]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise WhenceError(
                f"Option '{option}' of method '{name}' must be {wanted.__name__}, not {value!r}."
            )
    built: Method = method(**options)
    return built
