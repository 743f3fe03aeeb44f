"""The authors' results of LRP and partial LRP, for every sample and class."""

import numpy as np
import torch

from tests.test_golden import TAGS, read_golden


def read_authors_results(name: str, entry: str) -> list[tuple[int, int, torch.Tensor]]:
    """The authors' results of every sample and class."""
    data = read_golden(name)
    return [
        (i, column, torch.as_tensor(np.asarray(data[f"{i}/{tag}/{entry}"], dtype=np.float64)))
        for i in range(len(data["logits"]))
        for column, tag in enumerate(TAGS)
        if f"{i}/{tag}/{entry}" in data
    ]


def is_close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    assert ours.shape == expected.shape
    return bool((ours - expected).abs().max() <= tolerance * expected.abs().max())
