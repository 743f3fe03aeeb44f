"""What a visitor reads about each method before it runs: its cost, its idea, and which to try."""

from __future__ import annotations

import re
from typing import Literal

from whence import methods
from whence.inputs.sources import Kind

CardKind = Literal["image", "text", "generation"]
TabKind = Literal["image", "text"]
"""What the page explains beside generated text."""

# The best three of the results in docs/results, each with its default options: by the difference of
# negative and positive perturbation of photos; by token-F1 on reviews, of those whose scores depend
# on the class; by the drop of a name's log-probability in stories, of those run on all of them.
RECOMMENDED: dict[CardKind, tuple[str, str, str]] = {
    "image": ("whence", "tiba", "gae"),
    "text": ("whence", "attnlrp", "tiba"),
    "generation": ("whence", "partial_lrp", "tiba"),
}
WHY_RECOMMENDED: dict[CardKind, str] = {
    "image": "The best three with default options on 500 ImageNet photos, by a ViT-Ti.",
    "text": "The best three by class, with default options, on 199 film reviews, by a MiniLM.",
    "generation": "The best three with default options on 200 stories, by stories15M.",
}


def list_methods(kind: Kind) -> list[str]:
    """The names of methods that explain this kind of input."""
    return methods.available(kind)


def list_cards(kind: CardKind) -> list[tuple[str, str]]:
    """The text of each method's card with its name, the recommended ones first.

    A card has three lines: the name, the cost and the idea.
    """
    first = RECOMMENDED[kind]
    names = list_methods("image" if kind == "image" else "text")
    others = [name for name in names if name not in first]
    return [(_write_card(name), name) for name in (*first, *others)]


def is_slow(method: str) -> bool:
    """Whether a method runs the model many times, or solves a flow for each token."""
    return "forwards" in methods.describe(method).needs or method == "attention_flow"


def describe_cost(method: str) -> str:
    """The cost of a method in a few words, such as "quick, 2 passes"."""
    if is_slow(method):
        return "slow" if method == "attention_flow" else "slow, many passes"
    passes = re.match(r"\d+", methods.describe(method).cost)
    count = int(passes[0]) if passes else 1
    return f"quick, {count} pass{'es' if count > 1 else ''}"


def _write_card(method: str) -> str:
    return f"{method}\n{describe_cost(method)}\n{methods.describe(method).summary}"
