"""Which methods are compared: names with options, as people type them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whence import methods
from whence import rules as rule_sets
from whence.errors import WhenceError


@dataclass(frozen=True)
class Chosen:
    """A method with its options.

    Attributes:
        label: What it is called in tables: the text that it was chosen by.
        name: Its name in the registry.
        options: Its options.
        rules: How relevance passes operations.
    """

    label: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    rules: str = "stable"

    def request(self) -> dict[str, Any]:
        """What `Explainer.explain` is asked for."""
        return {"method": self.name, "rules": self.rules, **self.options}

    @property
    def about(self) -> methods.Description:
        """What is known about the method."""
        return methods.describe(self.name)


def choose(given: str | Sequence[str], rules: str = "stable") -> list[Chosen]:
    """Methods from ``"tiba,rollout:start_layer=1"``, or from a list of such texts.

    A comma ends a method if a known method follows; otherwise it separates options of the same
    method, or values of the same option: ``"tiba:rules=reference,start_layer=1,gae"``. What is
    chosen twice counts once.

    Args:
        given: The texts.
        rules: For methods that do not say ``rules=``.

    Raises:
        WhenceError: There is no such method or option, or none was named.
    """
    texts = [given] if isinstance(given, str) else list(given)
    labels = [label for text in texts for label in _split(text)]
    if not labels:
        raise WhenceError("Name at least one method; `whence methods` lists them.")
    rule_sets.get(rules)
    return [_read(label, rules) for label in dict.fromkeys(labels)]


def _split(text: str) -> list[str]:
    labels: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if not piece:
            continue
        if labels and ":" in labels[-1] and not _is_method(piece):
            labels[-1] += f",{piece}"
        else:
            labels.append(piece)
    return labels


def _is_method(piece: str) -> bool:
    try:
        methods.get(piece.partition(":")[0])
    except WhenceError:
        return False
    return True


def _read(label: str, rules: str) -> Chosen:
    name, _, rest = label.partition(":")
    methods.get(name)
    pairs: list[list[str]] = []
    for piece in rest.split(",") if rest else []:
        option, equals, value = piece.partition("=")
        if equals:
            pairs.append([option.strip(), value.strip()])
        elif pairs:
            pairs[-1][1] += f",{piece}"
        else:
            raise WhenceError(f"An option is given as {name}:NAME=VALUE, not '{label}'.")
    options: dict[str, Any] = {}
    for option, value in pairs:
        if option == "rules":
            rules = value
        else:
            options[option] = methods.parse(name, option, value)
    rule_sets.get(rules)
    methods.build(name, options)
    return Chosen(label, name, options, rules)
