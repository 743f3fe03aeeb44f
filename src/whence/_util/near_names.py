"""Find the names that someone may have meant: by the words in them first, then by letters."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

# Everyday words for what lists of classes call otherwise.
_EVERYDAY = {
    "bike": "bicycle",
    "bunny": "rabbit",
    "fridge": "refrigerator",
    "kitten": "cat",
    "kitty": "cat",
    "phone": "telephone",
    "plane": "airliner",
    "pup": "dog",
    "puppy": "dog",
    "sofa": "couch",
    "tv": "television",
}
# How alike letters are: of a whole name, of a file's, and of one word in a name.
_ALIKE, _ALIKE_FILE, _ALIKE_WORD = 0.6, 0.78, 0.8
_SWAPPED = 0.9
_MOST, _MOST_BY_LETTERS, _MOST_FILES = 5, 3, 10_000


def suggest_names(word: str, names: Iterable[str], write: Callable[[str], str] = str) -> str:
    """Ask whether one of the near names was meant: " Did you mean 'cat'?", or nothing.

    Args:
        word: What was given.
        names: What there is.
        write: How a name is written in the question.
    """
    return _ask(list(dict.fromkeys(map(write, find_near_names(word, names)))))


def suggest_paths(path: Path) -> str:
    """Ask whether a file or folder of a near name was meant, or nothing."""
    return _ask([str(one) for one in find_near_paths(path)])


def find_near_names(word: str, names: Iterable[str]) -> list[str]:
    """Find the names near to a word, the nearest first.

    "retriever" finds all names with that word, "dogs" those with "dog" or "sheepdog", and
    "retreiver", which is in no name, those with a word of nearly the same letters.
    """
    known, wanted = {name: _split(name) for name in names}, _split(word)
    everyday = [_EVERYDAY.get(one, one) for one in wanted]
    containing = _find_containing(wanted, known) or _find_containing(everyday, known)
    if containing:
        return containing
    long = {one for one in wanted if len(one) > 2}
    sharing = [name for name, words in known.items() if not long.isdisjoint(words)]
    if len(wanted) > 1 and sharing:
        return sharing
    return _find_by_letters("".join(wanted), known, _ALIKE)


def find_near_paths(path: Path) -> list[Path]:
    """Find files and folders whose names are near: another ending, case or a few letters."""
    parents = [path.parent]
    if not os.path.isdir(path.parent):
        parents = find_near_paths(path.parent) if path.parent != path else []
        inside = [parent / path.name for parent in parents if os.path.exists(parent / path.name)]
        return inside or list(parents)
    entries = _list_names(path.parent)
    wanted, stem = path.name.casefold(), path.stem.casefold()
    found = [one for one in entries if one.casefold() == wanted]
    found = found or [one for one in entries if Path(one).stem.casefold() == stem]
    if not found:
        stems: dict[str, list[str]] = {}
        for one in entries:
            stems.setdefault(Path(one).stem, []).append(one)
        words, known = _split(path.stem), {stem: _split(stem) for stem in stems}
        near = _find_containing(words, known)
        near = near or _find_by_letters("".join(words), known, _ALIKE_FILE)
        found = [one for name in near for one in stems[name]]
    return [path.parent / one for one in found]


def _ask(names: Sequence[str]) -> str:
    if not names:
        return ""
    quoted = [f"'{name}'" for name in names[:_MOST]]
    if len(names) > _MOST:
        return f" Did you mean one of these {len(names)}: {', '.join(quoted)}, …?"
    last = f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]
    return f" Did you mean {last}?"


def _find_containing(wanted: Sequence[str], known: Mapping[str, Sequence[str]]) -> list[str]:
    """Names that have all these words, and then those that have them in longer words."""
    if not wanted:
        return []
    letters, asked = "".join(wanted), set(wanted)
    whole = [name for name, words in known.items() if asked.issubset(words)]
    inside = [
        name for name, words in known.items() if len(letters) > 2 and letters in "".join(words)
    ]
    return list(dict.fromkeys([*whole, *inside]))


def _find_by_letters(letters: str, known: Mapping[str, Sequence[str]], alike: float) -> list[str]:
    scores: dict[str, float] = {}
    for name, words in known.items():
        score = _compare(letters, "".join(words), alike)
        if len(words) > 1:
            score = max(score, *(_compare(letters, one, _ALIKE_WORD) for one in words))
        if score:
            scores[name] = score
    ordered = sorted(scores, key=lambda name: -scores[name])
    best = [name for name in ordered if scores[name] >= _ALIKE_WORD]
    return best if 0 < len(best) <= _MOST else ordered[:_MOST_BY_LETTERS]


def _compare(one: str, other: str, least: float) -> float:
    """How alike letters are, or 0 if less than this."""
    least_shared = least * (len(one) + len(other)) / 2
    if min(len(one), len(other)) < least_shared:
        return 0.0
    if len(one) == len(other) > 2 and sorted(one) == sorted(other):
        return _SWAPPED  # of three letters, two of which are swapped, few stand in order
    if sum(letter in other for letter in one) < least_shared:
        return 0.0
    ratio = difflib.SequenceMatcher(a=other, b=one).ratio()
    return ratio if ratio >= least else 0.0


def _split(text: str) -> list[str]:
    """The words of a text, in lower case and in the singular."""
    return [_to_singular(word) for word in re.findall(r"[^\W_]+", text.casefold())]


def _to_singular(word: str) -> str:
    if len(word) < 4 or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    return word.removesuffix("s")


def _list_names(folder: Path) -> list[str]:
    """The names in a folder that are not hidden, as many as are read in a moment."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST_FILES)]
    except OSError:
        return []
    return sorted(name for name in names if not name.startswith("."))
