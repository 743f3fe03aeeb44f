"""Groups of a text's tokens: words, sentences, or passages that a user names."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from whence.errors import WhenceError
from whence.layout.sentences import find_sentences
from whence.layout.spelling import Offset
from whence.layout.words import Tokens, strip_marks

Passage: TypeAlias = str | Sequence[int]
"""The passage's own text, or its first character in the text and the one after its last."""
Passages: TypeAlias = Mapping[str, Passage] | Sequence[Passage]
"""Passages by name, or a list of them."""
Grouping: TypeAlias = str | Passages
"""How tokens are grouped: ``"token"``, ``"word"`` or ``"sentence"``; or into passages."""

KINDS = ("token", "word", "sentence")


@dataclass(frozen=True)
class TokenGroup:
    """Tokens that get one score together: the sum of theirs.

    Attributes:
        name: What it is called: its text, or the name of a passage.
        tokens: Positions of its tokens in the sequence.
        span: Its first character in the text and the one after its last; None if it stands nowhere
            in it, or its text is not known.
    """

    name: str
    tokens: tuple[int, ...]
    span: Offset | None = None


def group_tokens(
    tokens: Tokens, sample: int, by: Grouping, cuts: Sequence[int]
) -> list[TokenGroup]:
    """Group the tokens of a text.

    Args:
        tokens: The tokens.
        sample: Which text of the batch.
        by: ``"token"``, ``"word"`` or ``"sentence"``; or passages. Special tokens belong to no word
            and no sentence; tokens of no passage are left out.
        cuts: Positions at which a word or sentence ends in any case; passages stand before the
            first. At the last, the text ends.

    Raises:
        WhenceError: There is no such grouping or passage, or the text is not known.
    """
    if isinstance(by, str) and by not in KINDS:
        raise WhenceError(f"by is one of {', '.join(KINDS)}, or passages by name, not {by!r}.")
    if by not in ("token", "word") and not tokens.contents:
        raise WhenceError(
            "Sentences and passages need the text, which is not known. Give the tokenizer: "
            "Explainer(model, tokenizer=tokenizer)."
        )
    length = cuts[-1]
    numbers: Sequence[int | None]
    if by == "token":
        numbers = range(length)
    elif by == "word":
        numbers = tokens.words[sample][:length]
    else:
        text, places = tokens.contents[sample], _find_places(tokens, sample, length)
        if not isinstance(by, str):
            # An answer may quote a passage, which stands before the first cut.
            ends = [at for at in places[cuts[0] :] if at is not None]
            return _collect_passages(find_passages(by, text[: min(ends, default=None)]), places)
        starts = [start for start, _ in find_sentences(text)]
        # What stands before the first sentence can only be spaces, and belongs to it.
        numbers = [None if at is None else max(1, bisect(starts, at)) for at in places]
    groups: dict[tuple[int, int], list[int]] = {}
    for at, number in enumerate(numbers):
        if number is not None:
            groups.setdefault((number, bisect(cuts, at)), []).append(at)
    return [_name_group(tokens, sample, group) for group in groups.values()]


def find_passages(passages: Passages, text: str) -> dict[str, Offset]:
    """Find where passages stand in a text, by their names; a list names them by their texts.

    Raises:
        WhenceError: A passage is not in the text, or several times.
    """
    if not isinstance(passages, Mapping):
        passages = {one if isinstance(one, str) else f"{one[0]}-{one[1]}": one for one in passages}
    if not passages:
        raise WhenceError("There are no passages; give their texts, or their characters.")
    return {str(name): _find_passage(str(name), one, text) for name, one in passages.items()}


def _find_passage(name: str, passage: Passage, text: str) -> Offset:
    if not isinstance(passage, str):
        start, stop = passage
        if not 0 <= start < stop <= len(text):
            raise WhenceError(
                f"The passage '{name}' is from character {start} to {stop}, and the text has "
                f"{len(text)}."
            )
        return start, stop
    if not passage.strip():
        raise WhenceError(f"The passage '{name}' is empty.")
    # A tokenizer may spell spaces and capitals in another way.
    pattern = r"\s+".join(map(re.escape, passage.split()))
    found = [match.span() for match in re.finditer(pattern, text)]
    found = found or [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
    if len(found) != 1:
        times = f"stands {len(found)} times in the text" if found else "is not in the text"
        raise WhenceError(
            f"The passage '{name}' {times}. Give its first character and the one after its last "
            f"instead, such as (0, 120)."
        )
    return found[0]


def _collect_passages(
    passages: Mapping[str, Offset], places: Sequence[int | None]
) -> list[TokenGroup]:
    groups = []
    for name, (start, stop) in passages.items():
        held = [
            at for at, place in enumerate(places) if place is not None and start <= place < stop
        ]
        groups.append(TokenGroup(name, tuple(held), (start, stop)))
    return groups


def _find_places(tokens: Tokens, sample: int, length: int) -> list[int | None]:
    """The character of the text where each token begins, after spaces; None for special tokens."""
    text, places = tokens.contents[sample], list[int | None]()
    for offset in tokens.offsets[sample][:length]:
        spaces = 0
        if offset is not None and (piece := text[slice(*offset)]).strip():
            spaces = len(piece) - len(piece.lstrip())
        places.append(None if offset is None else offset[0] + spaces)
    return places


def _name_group(tokens: Tokens, sample: int, group: Sequence[int]) -> TokenGroup:
    """Name a group by its text, or else by its tokens."""
    strings = "".join(strip_marks(tokens.strings[sample][at]) for at in group)
    row: Sequence[Offset | None] = tokens.offsets[sample] if tokens.offsets else ()
    places = [offset for at in group if row and (offset := row[at]) is not None]
    if not places:
        return TokenGroup(strings, tuple(group))
    text = tokens.contents[sample]
    start, stop = min(start for start, _ in places), max(stop for _, stop in places)
    piece = text[start:stop]
    if piece.strip():
        start, stop = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
    # One of the bytes of a character is not the character.
    first, last = group[0], group[-1]
    is_part = first == last and places[0] in (*row[max(0, first - 1) : first], *row[last + 1 :][:1])
    return TokenGroup(strings if is_part else text[start:stop], tuple(group), (start, stop))
