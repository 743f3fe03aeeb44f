"""Small explanations of images and texts, built by hand."""

import torch

from whence import Explanation
from whence.layout import Tokens


def explain_image(scores, names=None, logits=None) -> Explanation:
    """An explanation of one image; scores are (rows, columns) or (classes, rows, columns)."""
    scores = torch.as_tensor(scores, dtype=torch.float32)
    grid = tuple(scores.shape[-2:])
    flat = scores.flatten(-2)[None]
    classes = 1 if flat.dim() == 2 else flat.shape[1]
    target = torch.arange(classes) if flat.dim() == 3 else torch.tensor(0)
    if names is not None:
        names = [names]
    logits = torch.linspace(2, -2, max(classes, 3))[None] if logits is None else logits
    return Explanation(
        flat,
        target[None],
        logits,
        grid=grid,
        target_names=names,
        method="tiba",
        settings={"rules": "stable"},
        version="1.2.3",
        model="pets",
    )


def explain_text(words, scores, names=None, logits=None) -> Explanation:
    """An explanation of one text; scores are (words,) or (classes, words).

    It stands between two special tokens, whose scores are large.
    """
    scores = torch.as_tensor(scores, dtype=torch.float32)
    special = torch.full((*scores.shape[:-1], 1), 99.0)
    scores = torch.cat([special, scores, special], -1)[None]
    classes = scores.shape[1] if scores.dim() == 3 else 1
    target = torch.arange(classes) if scores.dim() == 3 else torch.tensor(0)
    tokens = Tokens([["[CLS]", *words, "[SEP]"]], [[None, *range(len(words)), None]])
    return Explanation(
        scores,
        target[None],
        torch.tensor([[1.0, 0.0, -1.0]]) if logits is None else logits,
        tokens=tokens,
        target_names=None if names is None else [names],
        method="tiba",
        settings={"rules": "stable", "start_layer": 0},
        version="1.2.3",
    )
