"""Which passage did the answer come from? Five passages, one of which holds it by construction.

    python benchmarks/passages.py --prompts 200 --out docs/results/stories

A prompt has five passages of two sentences and a question with a gap at its end:

    Sam had a green duck. They read a book.
    Lily had a purple horse. They went to the park.
    …
    The next day, Lily went out with the purple

Names, colours, animals and deeds are drawn, none twice in a prompt. A prompt counts where the model
in `WHENCE_DATA`/stories15M continues with the animal of that passage, with a probability of one
half or more. Each method explains that token; some methods get the first prompts only. A passage's
score is the sum over its tokens, or their mean. Recall is the share of prompts in which the right
passage has the highest. All is seeded.
"""

import argparse
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from stories import (
    LEAST,
    NextToken,
    Writer,
    explain_tokens,
    format_interval,
    list_methods,
    write_csv,
)
from torch import Tensor

from whence import Explainer
from whence._util.progress import bar
from whence.datasets.planted_passages import ANIMALS, COLORS, DEEDS, NAMES
from whence.metrics.statistics import bootstrap_mean

COUNT = 5


class Prompt(NamedTuple):
    """Passages and a question.

    Attributes:
        text: The whole prompt.
        ids: Its tokens.
        target: The answer's first token.
        passages: The tokens of each passage.
        right: The number of the passage that holds the answer.
    """

    text: str
    ids: list[int]
    target: int
    passages: list[list[int]]
    right: int


def make_prompts(writer: Writer) -> Iterator[Prompt]:
    """Draw prompts without end, whatever the model says to them."""
    draw = random.Random(0)
    while True:
        facts = list(
            zip(
                *(draw.sample(words, COUNT) for words in (NAMES, COLORS, ANIMALS, DEEDS)),
                strict=True,
            )
        )
        right = draw.randrange(COUNT)
        texts = [
            f"{name} had a {colour} {animal}. They {deed}.\n"
            for name, colour, animal, deed in facts
        ]
        name, colour, animal, _ = facts[right]
        text = "".join(texts) + f"The next day, {name} went out with the {colour}"
        tokens = writer.tokenizer(text, return_offsets_mapping=True)
        ends = [sum(map(len, texts[: number + 1])) for number in range(COUNT)]
        passages: list[list[int]] = [[] for _ in texts]
        for at, (start, stop) in enumerate(tokens.offset_mapping):
            number = sum(stop > end for end in ends)
            if start < stop and number < COUNT:
                passages[number].append(at)
        target = writer.tokenizer(animal, add_special_tokens=False).input_ids[0]
        yield Prompt(text, tokens.input_ids, target, passages, right)


@torch.no_grad()
def is_answered(writer: Writer, prompt: Prompt) -> bool:
    """Whether the model gives the right answer a probability of at least one half."""
    logits = writer.model(torch.tensor([prompt.ids]), logits_to_keep=1).logits[0, -1]
    return float(logits.softmax(-1)[prompt.target]) >= LEAST


def find_passages(prompt: Prompt, scores: Tensor) -> tuple[int, int]:
    """Find the passages with the highest sum and with the highest mean."""
    sums = torch.stack([scores[tokens].sum() for tokens in prompt.passages])
    means = torch.stack([scores[tokens].mean() for tokens in prompt.passages])
    return int(sums.argmax()), int(means.argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--some", type=int, default=60, help="prompts for methods far behind")
    parser.add_argument("--few", type=int, default=10, help="prompts for slow methods")
    parser.add_argument("--fewest", type=int, default=3, help="prompts for the slowest")
    parser.add_argument("--out", type=Path, help="folder for all rows")
    options = parser.parse_args()
    writer = Writer(Path(os.environ["WHENCE_DATA"]) / "stories15M")
    explainer = Explainer(NextToken(writer.model))
    counts = list_methods(options.prompts, options.some, options.few, options.fewest)
    rows: list[tuple[int, str, int, int, int]] = []
    tried, answered = 0, 0
    with bar("Prompts", options.prompts) as done:
        for prompt in make_prompts(writer):
            tried += 1
            if is_answered(writer, prompt):
                for label, count in counts.items():
                    if answered < count:
                        scores = explain_tokens(explainer, prompt.ids, prompt.target, label)
                        rows.append((answered, label, prompt.right, *find_passages(prompt, scores)))
                answered += 1
                done(1)
            if answered == options.prompts:
                break
    print(f"\n{answered} of {tried} prompts were answered.\n")
    print("| method | prompts | recall by sum | recall by mean |\n| --- | ---: | ---: | ---: |")
    for label in dict.fromkeys(row[1] for row in rows):
        found = torch.tensor([row[2:] for row in rows if row[1] == label])
        hits = 100 * (found[:, 1:] == found[:, :1]).double()
        cells = [format_interval(bootstrap_mean(column), 1) for column in hits.T]
        print(f"| `{label}` | {len(found)} | {' | '.join(cells)} |")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        header = ["prompt", "method", "right", "highest sum", "highest mean"]
        write_csv(options.out / "passages.csv", header, rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
