"""Make prompts of several passages, of which one holds the answer to the question at the end."""

from __future__ import annotations

import random

from whence.datasets.base import Sample
from whence.errors import WhenceError

NAMES = "Lily Tim Tom Sue Ben Max Mia Sam Anna Jack Lucy Bob Amy Spot".split()
COLORS = "red blue green yellow pink purple black white brown".split()
ANIMALS = "dog cat bird frog duck fish rabbit bear horse cow pig mouse".split()
DEEDS = (
    "went to the park",
    "played in the yard",
    "baked a cake",
    "read a book",
    "ran in the woods",
    "sat by the lake",
    "made a hat",
    "saw a big tree",
)
MOST_PASSAGES = len(COLORS)


def make_planted_passages(
    seed: int, count: int, passages: int = 5, sentences: int = 1
) -> list[Sample]:
    """Make prompts, the same for the same seed.

    A prompt has passages such as "Lily had a purple horse. They went to the park.", and a gap at
    its end: "The next day, Lily went out with the purple". Names, colours and animals are drawn,
    none twice in a prompt.

    Args:
        seed: Of the draw.
        count: How many prompts.
        passages: How many passages each has.
        sentences: How many sentences that say nothing follow the fact in each passage: more of them
            make longer contexts, as the haystacks of RULER (Hsieh et al., COLM 2024) are.
    """
    if not 2 <= passages <= MOST_PASSAGES:
        raise WhenceError(f"A prompt has 2 to {MOST_PASSAGES} passages, not {passages}.")
    if count < 1 or sentences < 0:
        raise WhenceError("One prompt or more is made, of no sentences or more between facts.")
    draw = random.Random(seed)
    return [_make_prompt(draw, f"prompt-{n}", passages, sentences) for n in range(count)]


def _make_prompt(draw: random.Random, name: str, passages: int, sentences: int) -> Sample:
    facts = list(
        zip(*(draw.sample(words, passages) for words in (NAMES, COLORS, ANIMALS)), strict=True)
    )
    # No deed twice in a prompt, as long as there are enough.
    deeds: list[str] = []
    while len(deeds) < passages * sentences:
        deeds += draw.sample(DEEDS, len(DEEDS))
    right = draw.randrange(passages)
    text, spans = "", []
    for number, (owner, color, animal) in enumerate(facts):
        follow = deeds[number * sentences : (number + 1) * sentences]
        passage = " ".join(
            [f"{owner} had a {color} {animal}.", *(f"They {one}." for one in follow)]
        )
        spans.append((len(text), len(text) + len(passage)))
        text += passage + "\n"
    owner, color, animal = facts[right]
    text += f"The next day, {owner} went out with the {color}"
    return Sample(name, text, answer=animal, cues=(spans[right],), passages=tuple(spans))
