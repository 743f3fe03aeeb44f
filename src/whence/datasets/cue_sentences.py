"""Make sentences for language models whose next word follows from one word: the cue.

>>> make_cue_sentences(seed=0, count=2)[0].content  # doctest: +SKIP
'The capital of France is'
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from whence.datasets.base import Sample
from whence.errors import WhenceError

CueKind = Literal["capital", "giving", "agreement", "owning", "sequence"]
CUE_KINDS: tuple[CueKind, ...] = get_args(CueKind)

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Hungary": "Budapest",
    "Greece": "Athens",
    "Russia": "Moscow",
    "Ukraine": "Kyiv",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Belgium": "Brussels",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "China": "Beijing",
    "Japan": "Tokyo",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Canada": "Ottawa",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Australia": "Canberra",
}
_ASKED = ("The capital of {} is", "The capital city of {} is", "The name of the capital of {} is")
GIRLS = ("Lily", "Sue", "Mia", "Anna", "Lucy", "Amy", "Sara", "Mary", "Emma", "Jane")
BOYS = ("Tim", "Tom", "Ben", "Max", "Sam", "Jack", "Bob", "John", "Peter", "Leo")
_PLACES = ("park", "shop", "beach", "zoo", "school", "lake", "garden")
_GIFTS = ("drink", "cake", "ball", "book", "flower", "toy", "kite", "hat")
_PETS = ("dog", "cat", "bird", "frog", "duck", "fish", "rabbit", "bear", "horse", "mouse")
_CARED = ("gave some food to", "hugged", "loves")
_NOUNS = ("dog", "cat", "bird", "girl", "boy", "horse", "duck", "car", "ball", "flower", "toy")
_NEAR = ("near", "by", "behind", "next to")
_SEQUENCES = (
    ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    tuple("January February March April May June July August September October".split()),
    ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
)
# How often a new sentence is tried for before a kind counts as exhausted.
_TRIES = 200

Draw: TypeAlias = random.Random


class _Sentence(NamedTuple):
    """Parts of a text, of which one is the cue, and what comes next."""

    before: str
    cue: str
    after: str
    answer: str
    rival: str = ""


def make_cue_sentences(seed: int, count: int, kinds: Sequence[CueKind] = CUE_KINDS) -> list[Sample]:
    """Make different sentences, the kinds in turn; the same for the same seed.

    - ``capital``: "The capital of *France* is" … Paris.
    - ``giving``: "When *Mary* and John went to the shop, John gave a drink to" … Mary.
    - ``agreement``: "The *dogs* near the tree" … were, and not was.
    - ``owning``: "Mia has a *cat*. Tom has a dog. Mia gave some food to her" … cat.
    - ``sequence``: "Monday, Tuesday, *Wednesday*," … Thursday.

    Args:
        seed: Of the draw.
        count: How many; fewer where a kind has no more.
        kinds: Which kinds.
    """
    if count < 1 or not kinds:
        raise WhenceError("Of one kind or more, one sentence or more is made.")
    draw, samples, known = random.Random(seed), list[Sample](), set[str]()
    waiting = list(dict.fromkeys(kinds))
    while waiting and len(samples) < count:
        for kind in list(waiting):
            made = _make_new(_MAKERS[kind], draw, known)
            if made is None:
                waiting.remove(kind)
            elif len(samples) < count:
                samples.append(_to_sample(f"{kind}-{len(samples)}", made))
    return samples


def _make_new(maker: Callable[[Draw], _Sentence], draw: Draw, known: set[str]) -> _Sentence | None:
    """Draw a sentence that was not made yet; None if there seems to be none."""
    for _ in range(_TRIES):
        made = maker(draw)
        text = made.before + made.cue + made.after
        if text not in known:
            known.add(text)
            return made
    return None


def _to_sample(name: str, made: _Sentence) -> Sample:
    start = len(made.before)
    return Sample(
        name,
        made.before + made.cue + made.after,
        answer=made.answer,
        rival=made.rival,
        cues=((start, start + len(made.cue)),),
    )


def _make_capital(draw: Draw) -> _Sentence:
    country = draw.choice(list(CAPITALS))
    before, after = draw.choice(_ASKED).split("{}")
    return _Sentence(before, country, after, CAPITALS[country])


def _make_giving(draw: Draw) -> _Sentence:
    girl, boy = draw.choice(GIRLS), draw.choice(BOYS)
    taker, giver = (girl, boy) if draw.random() < 0.5 else (boy, girl)
    place, gift = draw.choice(_PLACES), draw.choice(_GIFTS)
    after = f" went to the {place}, {giver} gave a {gift} to"
    if draw.random() < 0.5:
        return _Sentence("When ", taker, f" and {giver}{after}", taker)
    return _Sentence(f"When {giver} and ", taker, after, taker)


def _make_agreement(draw: Draw) -> _Sentence:
    noun, other = draw.sample(_NOUNS, 2)
    near, is_plural = draw.choice(_NEAR), draw.random() < 0.5
    head, attractor = (f"{noun}s", other) if is_plural else (noun, f"{other}s")
    answers = ("were", "was") if is_plural else ("was", "were")
    return _Sentence("The ", head, f" {near} the {attractor}", *answers)


def _make_owning(draw: Draw) -> _Sentence:
    names = [draw.choice(GIRLS), draw.choice(BOYS), draw.choice(GIRLS + BOYS)]
    while names[2] in names[:2]:
        names[2] = draw.choice(GIRLS + BOYS)
    draw.shuffle(names)
    pets, at = draw.sample(_PETS, len(names)), draw.randrange(len(names))
    facts = [f"{name} has a {pet}." for name, pet in zip(names, pets, strict=True)]
    own = "her" if names[at] in GIRLS else "his"
    before = " ".join([*facts[:at], f"{names[at]} has a "])
    rest = " ".join([".", *facts[at + 1 :], f"{names[at]} {draw.choice(_CARED)} {own}"])
    return _Sentence(before, pets[at], rest, pets[at])


def _make_sequence(draw: Draw) -> _Sentence:
    words = draw.choice(_SEQUENCES)
    length = draw.randint(3, len(words) - 2)
    start = draw.randrange(len(words) - length)
    shown = words[start : start + length]
    return _Sentence(
        "".join(f"{word}, " for word in shown[:-1]), shown[-1], ",", words[start + length]
    )


_MAKERS: dict[CueKind, Callable[[Draw], _Sentence]] = {
    "capital": _make_capital,
    "giving": _make_giving,
    "agreement": _make_agreement,
    "owning": _make_owning,
    "sequence": _make_sequence,
}
