from types import SimpleNamespace

import pytest
import torch

from whence import Layout, WhenceError
from whence.methods.shared.attention_maps import check_layer, input_token_mask, normalize_rows


def build_evidence(pooling: list[list[float]], **facts) -> SimpleNamespace:
    """Build the part of evidence that `input_token_mask` reads."""
    batch = len(pooling)
    known = {"layout": Layout(prefix=0), "padding": None, "special": None} | facts
    logits = torch.zeros(batch, 2)
    return SimpleNamespace(pooling=torch.tensor([pooling]), logits=logits, batch=batch, **known)


def list_mask(evidence, tokens: int) -> list[list[int]]:
    return input_token_mask(evidence, tokens)[0].int().tolist()


def test_pooled_token_and_padding_are_left_out():
    padding = torch.tensor([[False] * 4, [False, False, False, True]])
    evidence = build_evidence([[1.0, 0, 0, 0], [0, 0, 1.0, 0]], padding=padding)
    assert list_mask(evidence, 4) == [[0, 1, 1, 1], [1, 1, 0, 0]]


def test_average_pooling_leaves_out_padding_only():
    padding = torch.tensor([[False, False, False, True]])
    evidence = build_evidence([[1 / 3, 1 / 3, 1 / 3, 0]], padding=padding)
    assert list_mask(evidence, 4) == [[1, 1, 1, 0]]


def test_special_tokens_are_left_out():
    special = torch.tensor([[True, False, False, True]])
    assert list_mask(build_evidence([[1.0, 0, 0, 0]], special=special), 4) == [[0, 1, 1, 0]]
    assert list_mask(build_evidence([[0.25] * 4], special=special), 4) == [[0, 1, 1, 0]]


@pytest.mark.parametrize("pooling", [[1.0, 0, 0, 0, 0], [0, 0.25, 0.25, 0.25, 0.25]])
def test_all_patches_of_an_image_count(pooling):
    evidence = build_evidence([pooling], layout=Layout(grid=(2, 2), prefix=1))
    assert list_mask(evidence, 5) == [[0, 1, 1, 1, 1]]


def test_all_tokens_count_where_other_tokens_are_pooled():
    assert list_mask(build_evidence([[1.0]]), 3) == [[1, 1, 1]]


@pytest.mark.parametrize(("layer", "number"), [(0, 0), (2, 2), (-1, 2), (-3, 0)])
def test_a_layer_that_exists(layer, number):
    assert check_layer(layer, 3) == number


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layer": 3},
            "layer=3 does not exist: the model has 3 attention layers, 0 to 2, or -3 to",
        ),
        ({"layer": -1, "option": "start_layer", "negative": False}, r"start_layer=-1 .* 0 to 2\.$"),
    ],
)
def test_a_layer_that_does_not_exist(options, message):
    with pytest.raises(WhenceError, match=message):
        check_layer(layers=3, **options)


def test_rows_of_zeros_stay():
    assert normalize_rows(torch.tensor([[1.0, 3], [0, 0]])).tolist() == [[0.25, 0.75], [0, 0]]
