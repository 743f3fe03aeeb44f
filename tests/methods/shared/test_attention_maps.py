from types import SimpleNamespace

import pytest
import torch

from whence import WhenceError
from whence.methods.shared.attention_maps import check_layer, finish_rollout, normalize_rows


def build_evidence(pooling: list[float], inputs: list[int], unpadded: int = 4) -> SimpleNamespace:
    """Build the part of evidence that `finish_rollout` reads: one class, one sample, one layer."""
    return SimpleNamespace(
        pooling=torch.tensor([[pooling]]),
        input_tokens=torch.tensor([inputs]).bool(),
        token_mask=torch.arange(4)[None] < unpadded,
        layers=[SimpleNamespace(queries=0, keys=0)],
        flow=None,
        tokens=4,
    )


@pytest.mark.parametrize(
    ("pooling", "inputs", "expected"),
    [
        # A class token: its own share says nothing, and it gets the lowest score.
        ([1.0, 0, 0, 0], [0, 1, 1, 1], [2, 2, 3, 4]),
        # The last token of a language model keeps its own share.
        ([0, 0, 0, 1.0], [1, 1, 1, 1], [1, 2, 3, 14]),
        # All tokens are pooled alike: the share tells nothing apart.
        ([0.25] * 4, [1, 1, 1, 1], [1, 2, 3, 4]),
        # So it is beside a class token.
        ([0.7, 0.1, 0.1, 0.1], [0, 1, 1, 1], [1, 2, 3, 4]),
        # Tokens that are pooled unevenly.
        ([0, 0.5, 0.5, 0], [1, 1, 1, 1], [1, 7, 8, 4]),
    ],
)
def test_what_pooled_tokens_keep_of_themselves(pooling, inputs, expected):
    evidence = build_evidence(pooling, inputs)
    scores = finish_rollout(10 * evidence.pooling, torch.tensor([[[1.0, 2, 3, 4]]]), evidence)
    assert scores.tolist() == [[expected]]


def test_padding_has_no_lowest_score():
    evidence = build_evidence([1.0, 0, 0, 0], [0, 1, 1, 0], unpadded=3)
    scores = finish_rollout(evidence.pooling, torch.tensor([[[9.0, 2, 3, 1]]]), evidence)
    assert scores.tolist() == [[[2, 2, 3, 1]]]


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
