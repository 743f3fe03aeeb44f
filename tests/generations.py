"""A generation built by hand: two prompts with outputs of different lengths."""

import torch

from whence import Generation
from whence.layout import Tokens
from whence.layout.spelling import number_words
from whence.layout.words import cut_words

# Pieces of text; the generated ones come after the bar.
_SAMPLES = (
    ["<s>", "Tim", " has", " a", " ball", ".", "|", " S", "ue", " has", " it", ".", "</s>"],
    ["<s>", "A", " cat", "|", " sat", ".\n"],
)


def make_generation(signed=False) -> Generation:
    """Scores are the numbers of their tokens, less so many times 10 as the step is later."""
    strings, contents, offsets, lengths, steps = [], [], [], [], []
    width = max(map(len, _SAMPLES)) - 1
    for pieces in _SAMPLES:
        bar = pieces.index("|")
        pieces = [one for one in pieces if one != "|"]
        text, places = "", []
        for piece in pieces:
            special = piece.startswith("<")
            places.append(None if special else (len(text), len(text) + len(piece)))
            text += "" if special else piece
        padding = width - len(pieces)
        strings.append([*pieces, *["<pad>"] * padding])
        contents.append(text)
        offsets.append([*places, *[None] * padding])
        lengths.append(bar)
        steps.append(len(pieces) - bar)
    words = [number_words(*one) for one in zip(contents, offsets, strict=True)]
    texts = [cut_words(*one) for one in zip(contents, offsets, words, strict=True)]
    positions = torch.full((2, max(steps)), -1)
    scores = torch.zeros(2, max(steps), width)
    for sample, (start, count) in enumerate(zip(lengths, steps, strict=True)):
        for step in range(count):
            positions[sample, step] = start + step
            row = torch.arange(1.0, start + step + 1) + 10 * step
            scores[sample, step, : start + step] = row * (-1 if signed and step % 2 else 1)
    there = positions >= 0
    return Generation(
        scores=scores,
        target=torch.where(there, positions + 100, -1),
        logits=torch.zeros(2, 0),
        tokens=Tokens(strings, words, texts, contents, offsets),
        target_names=[
            [strings[n][at] if at >= 0 else "" for at in row]
            for n, row in enumerate(positions.tolist())
        ],
        method="gae",
        version="1.2.3",
        probabilities=torch.where(there, 0.5, torch.nan),
        positions=positions,
        prompt_lengths=torch.tensor(lengths),
    )
