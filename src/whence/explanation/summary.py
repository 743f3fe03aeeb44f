"""An explanation in one line, and what a reader should know of how it was made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from whence._util.text import to_printable
from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation

SAME_FOR_EVERY_CLASS = "the same for every class"
# More classes are counted rather than named.
_NAMED = 3


def format_line(explanation: Explanation) -> str:
    """The explanation in one line: method, model, how many inputs, classes and size."""
    parts = [
        explanation.method,
        f"model {explanation.model}" if explanation.model else "",
        _count_samples(explanation),
        *_name_classes(explanation),
        _format_size(explanation),
    ]
    name = type(explanation).__name__
    return f"{name}({', '.join(to_printable(part) for part in parts if part)})"


def list_provenance(explanation: Explanation) -> list[tuple[str, str]]:
    """Names and values of the method, the model, the settings and the version of whence."""
    label = f" ({SAME_FOR_EVERY_CLASS})" if explanation.class_note else ""
    facts = [
        ("method", explanation.method + label),
        ("model", explanation.model),
        ("it knows", explanation.model_knows),
        *explanation.settings.items(),
        ("whence", explanation.version),
    ]
    return [(to_printable(str(k)), to_printable(str(v))) for k, v in facts if v not in ("", None)]


def name_kind(explanation: Explanation) -> str:
    """What kind of input was explained, in a word: photo, video, sound, signal, text or input.

    Several images are those of a prompt.
    """
    if "time" in explanation.axes:
        return "sound"
    if "image" in explanation.axes:
        return "prompt"
    if explanation.grid is not None:
        return {1: "signal", 2: "photo", 3: "video"}.get(len(explanation.grid), "input")
    return "text" if explanation.tokens is not None else "input"


def _count_samples(explanation: Explanation) -> str:
    count, kind = len(explanation), name_kind(explanation)
    return f"{count} {kind}{'' if count == 1 else 's'}"


def _name_classes(explanation: Explanation) -> list[str]:
    """The classes of a lone sample with their probabilities; of several, how many for each."""
    several = math.prod(explanation.target.shape[1:])
    if hasattr(explanation, "prompt_lengths"):  # generated text
        return [f"{several} generated"]
    if len(explanation) != 1 or several > _NAMED:
        return [f"{several} classes{' each' * (len(explanation) > 1)}"] if several > 1 else []
    try:
        return [f"{one.name} {one.percent}".strip() for one in explanation.classes()]
    except WhenceError:  # scores that are not finite have a line, too
        return []


def _format_size(explanation: Explanation) -> str:
    if explanation.grid is not None:
        return "\u00d7".join(map(str, explanation.grid))
    return f"{explanation.scores.shape[-1]} tokens"
