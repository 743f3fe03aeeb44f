"""Checks that the explanations of an opened bundle fit its input and each other."""

from __future__ import annotations

import math

import torch

from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.sources import Kind
from whence.web.limits import MAX_CLASSES, MAX_UNITS


def check_explanations(
    explanations: dict[str, Explanation], kind: Kind, against: object = None
) -> None:
    """Check explanations by method: shapes, classes, numbers and names.

    `against` is the class that they are explained against; None if there is none.
    """
    first = next(iter(explanations.values()))
    for name, one in explanations.items():
        fits = (
            one.method == name
            and _has_right_tensors(one)
            and torch.equal(one.target, first.target)
            and _is_other_class(against, one)
            and (_has_grid(one) if kind == "image" else _has_tokens(one))
            and _has_class_names(one)
        )
        if not fits:
            raise WhenceError(f"The explanation '{name}' in the bundle does not fit its input.")


def _has_right_tensors(one: Explanation) -> bool:
    return (
        one.scores.dim() == 3
        and one.scores.shape[0] == 1
        and 1 <= one.scores.shape[1] <= MAX_CLASSES
        and 1 <= one.scores.shape[2] <= MAX_UNITS
        and one.target.shape == one.scores.shape[:2]
        and one.target.dtype == torch.int64
        and one.logits.dim() == 2
        and one.logits.shape[0] == 1
        and 0 <= int(one.target.min()) <= int(one.target.max()) < one.logits.shape[1]
        and bool(torch.isfinite(one.scores).all() and torch.isfinite(one.logits).all())
    )


def _is_other_class(against: object, one: Explanation) -> bool:
    if against is None:
        return True
    is_class = type(against) is int and 0 <= against < one.logits.shape[1]
    return is_class and against not in one.target.flatten().tolist()


def _has_grid(one: Explanation) -> bool:
    sides = list(one.grid or ())
    if [type(side) for side in sides] != [int, int]:
        return False
    return min(sides) > 0 and math.prod(sides) == one.scores.shape[-1]


def _has_tokens(one: Explanation) -> bool:
    if one.grid is not None or one.tokens is None or len(one.tokens.strings) != 1:
        return False
    strings, words = one.tokens.strings[0], one.tokens.words[0]
    texts = one.tokens.texts[0] if one.tokens.texts else []
    numbers = [word for word in words if word is not None]
    return (
        len(strings) == len(words) == one.scores.shape[-1]
        and all(isinstance(s, str) for s in (*strings, *texts))
        and all(isinstance(n, int) and n >= 0 for n in numbers)
        and (not one.tokens.texts or max(numbers, default=-1) < len(texts))
    )


def _has_class_names(one: Explanation) -> bool:
    if one.target_names is None:
        return True
    names: object = one.target_names[0] if len(one.target_names) == 1 else None
    count = one.scores.shape[1]
    return isinstance(names, list) and len(names) == count and all(type(n) is str for n in names)
