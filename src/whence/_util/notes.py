"""Say notes of many inputs once each, with the number of inputs that they are about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def merge_notes(notes: Sequence[Iterable[str]], noun: str) -> list[str]:
    """Merge notes that differ in nothing but numbers, and count the inputs that have them.

    Args:
        notes: The notes of each input.
        noun: What an input is, such as "photo".

    Returns:
        Such as "the model saw only the middle 56 to 75% of the photo (2 of 12 photos)".
    """
    groups: dict[str, dict[int, str]] = {}
    for index, of_input in enumerate(notes):
        for note in of_input:
            groups.setdefault(_NUMBER.sub("0", note), {})[index] = note
    return [
        f"{_join(list(group.values()))} ({_count(len(group), len(notes), noun)})"
        for group in groups.values()
    ]


def find_repeated(notes: Sequence[Iterable[str]]) -> set[str]:
    """Find the notes that more than one input has, also with other numbers."""
    inputs: dict[str, set[int]] = {}
    for index, of_input in enumerate(notes):
        for note in of_input:
            inputs.setdefault(_NUMBER.sub("0", note), set()).add(index)
    every = (note for of_input in notes for note in of_input)
    return {note for note in every if len(inputs[_NUMBER.sub("0", note)]) > 1}


def _join(notes: Sequence[str]) -> str:
    """One note for several, with the range of each number that differs."""
    ranges = map(_write_range, zip(*map(_NUMBER.findall, notes), strict=True))
    return _NUMBER.sub(lambda _: next(ranges), notes[0])


def _write_range(numbers: Sequence[str]) -> str:
    ordered = sorted(set(numbers), key=float)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def _count(some: int, every: int, noun: str) -> str:
    nouns = noun if every == 1 else f"{noun}s"
    if some < every:
        return f"{some} of {every} {nouns}"
    return f"both {nouns}" if every == 2 else f"{every} {nouns}"
