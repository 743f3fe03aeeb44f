"""Relations of tokens by marks, beside relations that are known."""

import pytest
import torch

from whence.tracing.flow.places import TokenIndex, relate

BATCH = 2


def find(upstream_of: torch.Tensor) -> set[tuple[int, ...]]:
    """Relate tokens, given as (tokens, tokens upstream), the same for all samples."""
    chosen_of = upstream_of.double()

    def mark(chosen):
        marks = (chosen.double() @ chosen_of > 0)[:, None].expand(-1, BATCH, -1)
        return [marks, None]

    found, empty = relate(mark, len(upstream_of), 10, torch.device("cpu"))
    assert not len(empty)
    assert bool((found[:, 3] == 1).all())
    assert len(torch.unique(found, dim=0)) == len(found)
    return {tuple(row) for row in found[:, :3].long().tolist()}


def list_pairs(relation: torch.Tensor) -> set[tuple[int, ...]]:
    return {(s, *pair) for s in range(BATCH) for pair in relation.nonzero().tolist()}


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_windows_that_may_overlap(overlap):
    """Token i is made of 4 tokens from 4 i on, and some more."""
    relation = torch.zeros(40, 40 * 4 + overlap, dtype=torch.bool)
    for token in range(40):
        relation[token, 4 * token : 4 * token + 4 + overlap] = True
    assert find(relation) == list_pairs(relation)


def test_tokens_of_all_tokens():
    relation = torch.ones(9, 5, dtype=torch.bool)
    assert find(relation) == list_pairs(relation)


def test_any_relation():
    relation = torch.rand(30, 20, generator=torch.Generator().manual_seed(0)) < 0.2
    assert find(relation) == list_pairs(relation)


def test_elements_of_tokens():
    """A stream with channels before rows and columns, samples last."""
    rows = torch.arange(3).reshape(1, 3, 1, 1)
    columns = torch.arange(4).reshape(1, 1, 4, 1)
    samples = torch.arange(BATCH).reshape(1, 1, 1, BATCH)
    index = TokenIndex(samples, rows * 4 + columns, BATCH, 12)
    values = torch.randn(5, 6, 3, 4, BATCH, generator=torch.Generator().manual_seed(0))
    expected = values.permute(0, 4, 2, 3, 1).reshape(5, BATCH, 12, 6)
    assert torch.equal(index.to_rows(values), expected)
    assert torch.allclose(index.reduce(values, "sum"), expected.sum(-1), atol=1e-6)
    assert torch.equal(index.reduce(values.abs(), "amax"), expected.abs().amax(-1))


def test_elements_of_no_token():
    """Of a sequence of 6, two elements are padding."""
    tokens = torch.tensor([0, 1, -1, 2, -1, 3]).reshape(1, 6, 1)
    index = TokenIndex(torch.arange(BATCH).reshape(-1, 1, 1), tokens, BATCH, 4)
    values = torch.randn(1, BATCH, 6, 5, generator=torch.Generator().manual_seed(0))
    expected = values[:, :, [0, 1, 3, 5]]
    assert torch.equal(index.to_rows(values), expected)
    assert torch.allclose(index.reduce(values, "sum"), expected.sum(-1), atol=1e-6)
