from types import SimpleNamespace

import pytest
import torch

from whence import Layout
from whence.methods.shared.attention_maps import input_token_mask


def build_evidence(pooling: list[list[float]], **facts) -> SimpleNamespace:
    """The facts of one class that `content` reads."""
    batch = len(pooling)
    known = {"layout": Layout(prefix=0), "padding": None, "special": None} | facts
    logits = torch.zeros(batch, 2)
    return SimpleNamespace(pooling=torch.tensor([pooling]), logits=logits, batch=batch, **known)


def list_content(evidence, tokens: int) -> list[list[int]]:
    return input_token_mask(evidence, tokens)[0].int().tolist()


def test_the_token_that_is_read_and_padding_stay():
    padding = torch.tensor([[False] * 4, [False, False, False, True]])
    evidence = build_evidence([[1.0, 0, 0, 0], [0, 0, 1.0, 0]], padding=padding)
    assert list_content(evidence, 4) == [[0, 1, 1, 1], [1, 1, 0, 0]]


def test_where_all_tokens_are_read_all_may_go():
    padding = torch.tensor([[False, False, False, True]])
    evidence = build_evidence([[1 / 3, 1 / 3, 1 / 3, 0]], padding=padding)
    assert list_content(evidence, 4) == [[1, 1, 1, 0]]


def test_tokens_of_no_word_stay():
    special = torch.tensor([[True, False, False, True]])
    assert list_content(build_evidence([[1.0, 0, 0, 0]], special=special), 4) == [[0, 1, 1, 0]]
    assert list_content(build_evidence([[0.25] * 4], special=special), 4) == [[0, 1, 1, 0]]


@pytest.mark.parametrize("read", [[1.0, 0, 0, 0, 0], [0, 0.25, 0.25, 0.25, 0.25]])
def test_of_an_image_all_patches_may_go(read):
    evidence = build_evidence([read], layout=Layout(grid=(2, 2), prefix=1))
    assert list_content(evidence, 5) == [[0, 1, 1, 1, 1]]


def test_where_others_are_read_than_the_tokens_of_the_input_all_may_go():
    assert list_content(build_evidence([[1.0]]), 3) == [[1, 1, 1]]
