"""Einsum and its relatives: the same numbers, gradients and relevance as products written out."""

import pytest
import torch

from tests.tracing.attention_model import AttentionLayer, assert_same, read_everything
from whence.tracing.recorders import einsum


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("...ij,...kj->...ik", [(2, 3, 4), (2, 5, 4)]),
        ("...ij,kj->...ik", [(2, 3, 4), (5, 4)]),
        ("...i,...i->...", [(2, 3, 4), (3, 4)]),
        ("bhid,bhjd->bijh", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bij,k->bk", [(2, 3, 4), (5,)]),
        ("i,j->ji", [(3,), (4,)]),
        ("bi,bi->b", [(2, 3), (2, 3)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("bi,bi->b", [(2, 3), (1, 3)]),
        ("i,i,i->i", [(3,)] * 3),
        ("ij->ji", [(3, 4)]),
        ("ii", [(3, 3)]),
        ("bijj->bi", [(2, 3, 4, 4)]),
        ("bi,ij,bj->b", [(2, 3), (3, 4), (2, 4)]),
        ("b i, i j , j k -> b k", [(2, 3), (3, 4), (4, 5)]),
        ("...i,ij,...j->...", [(2, 3, 4), (4, 5), (2, 3, 5)]),
        ("ij,ij", [(3, 4), (3, 4)]),
        ("bchw,hkc,wkc->bhwk", [(2, 3, 4, 5), (4, 6, 3), (5, 6, 3)]),
    ],
)
def test_an_einsum_is_made_of_matrix_products(equation, shapes):
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    found = einsum.run_einsum(equation, operands)
    assert torch.allclose(found, torch.einsum(equation, *operands))


SAME = {
    "lists of numbers": {
        "scores": lambda q, k: torch.einsum(q, [0, 1, 2, 4], k, [0, 1, 3, 4], [0, 1, 2, 3])
    },
    "numbers and dots": {
        "scores": lambda q, k: torch.einsum(q, [..., 0, 2], k, [..., 1, 2], [..., 0, 1])
    },
    "no change of order": {
        "after": lambda x: torch.einsum("bij->bji", torch.einsum("bij->bji", x))
    },
    "tensordot": {"linear": lambda x, w: torch.tensordot(x, w, ([-1], [1]))},
    "tensordot of a number": {"linear": lambda x, w: torch.tensordot(x, w.T, 1)},
    "inner": {"linear": lambda x, w: torch.inner(x, w)},
    "matrix times vector": {
        "linear": lambda x, w: torch.stack([x @ row for row in w], -1),
    },
    "vector times matrix": {
        "linear": lambda x, w: torch.stack([row @ w.T for row in x.flatten(0, -2)]).view(x.shape),
    },
}


@pytest.mark.parametrize("name", SAME)
def test_products_are_recorded_alike(name):
    assert_same(read_everything(AttentionLayer(**SAME[name])), read_everything(AttentionLayer()))


def test_an_einsum_of_three_is_two_products():
    weight = torch.randn(8, 8, dtype=torch.float64)
    at_once = AttentionLayer(after=lambda x: torch.einsum("bti,ij,jk->btk", x, weight, weight))
    in_turn = AttentionLayer(after=lambda x: x @ weight @ weight)
    assert_same(read_everything(at_once), read_everything(in_turn))
