"""Parse methods and their options from text, such as ``tiba,rollout:start_layer=1``."""

from collections.abc import Sequence
from contextlib import suppress

from whence.errors import WhenceError
from whence.methods import registry
from whence.methods.registry import MethodSpecification, OptionValue
from whence.rules import get as get_rules


def parse_methods(texts: str | Sequence[str], rules: str = "stable") -> list[MethodSpecification]:
    """Parse methods from ``"tiba,rollout:start_layer=1"``, or from a list of such texts.

    A comma ends a method if a known method follows; otherwise it separates options of the same
    method, or values of the same option: ``"tiba:rules=reference,start_layer=1,gae"``. A method
    that is named twice counts once.

    Args:
        texts: The texts.
        rules: The relevance rules for methods without ``rules=``.

    Raises:
        WhenceError: There is no such method or option, or none was named.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    labels = [label for text in texts for label in _split_methods(text)]
    if not labels:
        raise WhenceError("Name at least one method; `whence methods` lists them.")
    get_rules(rules)
    return [_parse_method(label, rules) for label in dict.fromkeys(labels)]


def parse_options(method: str, texts: Sequence[str]) -> dict[str, OptionValue]:
    """Parse options of a method from texts such as ``start_layer=1``.

    Raises:
        WhenceError: A text is not NAME=VALUE, or the method has no such option or value.
    """
    options: dict[str, OptionValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise WhenceError(f"An option is given as NAME=VALUE, not '{text}'.")
        options[name] = parse_option(method, name, value)
    return options


def parse_option(method: str, option: str, text: str) -> OptionValue:
    """Parse the value of one option.

    Raises:
        WhenceError: The method has no such option, or the text is no value of its type.
    """
    kind = registry.find_option_type(method, option)
    fitting = (value for value in _list_readings(text) if registry.is_of_type(value, kind))
    value = next(fitting, text)
    registry.check_option(method, option, value)
    return value


def _list_readings(text: str) -> list[OptionValue]:
    """List the values that a text may mean, the likeliest first."""
    words: dict[str, OptionValue] = {"true": True, "false": False, "none": None}
    values: list[OptionValue] = [words[text.lower()]] if text.lower() in words else []
    for number in (int, float):
        with suppress(ValueError):
            values.append(number(text))
    values.append(text)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for kind in (int, float, str):
        with suppress(ValueError):
            values.append(tuple(map(kind, parts)))
    return values


def _split_methods(text: str) -> list[str]:
    labels: list[str] = []
    for piece in filter(None, map(str.strip, text.split(","))):
        if labels and ":" in labels[-1] and not _is_method(piece):
            labels[-1] += f",{piece}"
        else:
            labels.append(piece)
    return labels


def _is_method(piece: str) -> bool:
    try:
        registry.get(piece.partition(":")[0])
    except WhenceError:
        return False
    return True


def _parse_method(label: str, rules: str) -> MethodSpecification:
    name, _, rest = label.partition(":")
    registry.get(name)
    pairs: list[list[str]] = []
    for piece in rest.split(",") if rest else []:
        option, equals, value = piece.partition("=")
        if equals:
            pairs.append([option.strip(), value.strip()])
        elif pairs:
            pairs[-1][1] += f",{piece}"
        else:
            raise WhenceError(f"An option is given as {name}:NAME=VALUE, not '{label}'.")
    options: dict[str, OptionValue] = {}
    for option, value in pairs:
        if option == "rules":
            rules = value
        else:
            options[option] = parse_option(name, option, value)
    get_rules(rules)
    registry.build(name, options)
    return MethodSpecification(label, name, options, rules)
