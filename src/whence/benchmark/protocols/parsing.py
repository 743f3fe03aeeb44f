"""Parse protocols and their options from text, such as ``srg:steps=20,perturbation:fill=blur``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from whence.benchmark.protocols import PROTOCOLS, find_protocol
from whence.benchmark.protocols.options import read_option
from whence.errors import WhenceError


class ProtocolSpecification(NamedTuple):
    """A protocol's name with the options that were given."""

    name: str
    options: dict[str, object]


def parse_protocols(texts: str | Sequence[str]) -> list[ProtocolSpecification]:
    """Parse protocols from ``"srg:steps=20,saco"``, or from a list of such texts.

    A comma ends a protocol, or an option if ``NAME=VALUE`` follows. Several values of one option
    are joined by ``+``: ``"perturbation:fill=zero+blur,unit=patches,srg"``.

    Raises:
        WhenceError: There is no such protocol, option or value, or none was named.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    found: list[ProtocolSpecification] = []
    for text in texts:
        before = len(found)
        for piece in filter(None, map(str.strip, text.split(","))):
            _parse_piece(piece, found, before)
    if not found:
        raise WhenceError(f"Name at least one benchmark: {', '.join(PROTOCOLS)}.")
    return found


def parse_protocol(text: str) -> ProtocolSpecification:
    """Parse a single protocol.

    Raises:
        WhenceError: As for `parse_protocols`, or there are several.
    """
    found = parse_protocols(text)
    if len(found) > 1:
        raise WhenceError(
            f"'{text}' names {len(found)} benchmarks; `whence.benchmark.run_suite` runs several."
        )
    return found[0]


def _parse_piece(piece: str, found: list[ProtocolSpecification], start: int) -> None:
    """Add a protocol, or an option to the last one of the same text."""
    head, equals, value = piece.partition("=")
    if ":" not in head and equals and len(found) > start:
        _add_option(found[-1], head, value)
        return
    name, colon, option = (part.strip() for part in head.partition(":"))
    find_protocol(name)
    found.append(ProtocolSpecification(name, {}))
    if colon or equals:
        if not (option and equals):
            raise WhenceError(f"An option is given as {name}:NAME=VALUE, not '{piece}'.")
        _add_option(found[-1], option, value)


def _add_option(protocol: ProtocolSpecification, option: str, value: str) -> None:
    option = option.strip()
    if option in protocol.options:
        raise WhenceError(
            f"'{option}' of the {protocol.name} benchmark is given twice; several values are "
            f"joined by '+'."
        )
    kind = find_protocol(protocol.name)
    protocol.options[option] = read_option(kind, option, value.strip())
