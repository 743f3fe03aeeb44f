"""Read the options of protocols: values, or texts such as ``zero+blur``, by the field's type."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin, get_type_hints

from whence._util.near_names import suggest_names
from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.benchmark.protocols.base import AnyProtocol

_WORDS = {"true": True, "false": False}


def list_option_types(kind: type[AnyProtocol]) -> dict[str, object]:
    """List the options of a protocol with their types."""
    hints = get_type_hints(kind)
    return {
        f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init and f.name != "labels"
    }


def read_option(kind: type[AnyProtocol], option: str, value: object) -> object:
    """Read the value of an option, which may be a text, as the type of its field.

    An option of several values takes a list, one value, or a text with ``+`` or commas between
    values.

    Raises:
        WhenceError: The protocol has no such option, or the value is none of its type.
    """
    known = list_option_types(kind)
    if option not in known:
        listed = ", ".join(known) or "none"
        raise WhenceError(
            f"The {kind.name} benchmark has no option '{option}'.{suggest_names(option, known)} "
            f"It has: {listed}."
        )
    hint = known[option]
    try:
        return _read_value(hint, value)
    except ValueError:
        raise WhenceError(f"'{option}' is {_describe_type(hint)}, not {value!r}.") from None


def _read_value(hint: object, value: object) -> object:
    """Read a value of a type; a `ValueError` if it is none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_any(arguments, value)
    if origin is tuple:
        return _read_several(arguments[0], value)
    if origin is Literal:
        found = next((one for one in arguments if value == one or value == str(one)), None)
        if found is None:
            raise ValueError
        return found
    if hint is types.NoneType:
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        raise ValueError
    if hint is bool and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if hint in (int, float) and not isinstance(value, bool) and isinstance(value, str | int):
        return int(value) if hint is int else float(value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise ValueError
    if isinstance(value, bool) and hint is not bool:
        raise ValueError
    return value


def _read_any(hints: Iterable[object], value: object) -> object:
    # None first: the text "none" is also a text.
    for hint in sorted(hints, key=lambda one: one is not types.NoneType):
        with suppress(ValueError):
            return _read_value(hint, value)
    raise ValueError


def _read_several(hint: object, value: object) -> tuple[object, ...]:
    parts: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
    if isinstance(value, str):
        parts = filter(None, map(str.strip, value.replace(",", "+").split("+")))
    # What is named twice counts once.
    found = tuple(dict.fromkeys(_read_value(hint, part) for part in parts))
    if not found:
        raise ValueError
    return found


def _describe_type(hint: object) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe_type(one) for one in arguments)
    if origin is tuple:
        return f"{_describe_type(arguments[0])}, or several of these joined by '+'"
    if origin is Literal:
        return " or ".join(f"'{one}'" for one in arguments)
    plain = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
        types.NoneType: "none",
    }
    return plain[hint] if isinstance(hint, type) and hint in plain else str(hint)
