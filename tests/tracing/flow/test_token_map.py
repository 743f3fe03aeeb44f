"""Token maps beside dense matrices."""

import pytest
import torch

from whence.tracing.flow.token_map import TokenMap, make_maps

BATCH = 2


def make_relation(count: int, upstream: int, entries: int, seed: int) -> torch.Tensor:
    """A random relation of tokens, without repetitions: sample, token, upstream, weight 1."""
    generator = torch.Generator().manual_seed(seed)
    every = torch.cartesian_prod(torch.arange(BATCH), torch.arange(count), torch.arange(upstream))
    chosen = every[torch.randperm(len(every), generator=generator)[:entries]]
    return torch.cat([chosen, torch.ones(entries, 1)], 1).double()


def to_dense(one: TokenMap) -> torch.Tensor:
    """(batch, tokens, tokens upstream), entry by entry."""
    batch, count, upstream = one.shape
    dense = torch.zeros(one.shape, dtype=torch.float64)
    for token, source, weight in zip(one.tokens, one.upstream, one.weights, strict=True):
        assert token // count == source // upstream
        dense[token // count, token % count, source % upstream] += weight
    assert dense.shape[0] == batch
    return dense


def test_tokens_are_the_mean_of_what_they_are_made_of():
    first, second = make_relation(5, 7, 20, seed=0), make_relation(5, 4, 12, seed=1)
    maps = make_maps([(first, 7), (second, 4)], BATCH, 5, torch.device("cpu"))
    whole = torch.cat([to_dense(one) for one in maps], -1)
    counts = torch.zeros(BATCH, 5, dtype=torch.float64)
    for relation in (first, second):
        for sample, token, _, _ in relation.tolist():
            counts[int(sample), int(token)] += 1
    assert counts.max() > 1
    expected = torch.zeros_like(whole)
    for relation, start in ((first, 0), (second, 7)):
        for sample, token, source, _ in relation.long().tolist():
            expected[sample, token, start + source] = 1 / counts[sample, token]
    assert torch.allclose(whole, expected)


def test_rows_and_columns():
    (one,) = make_maps([(make_relation(5, 7, 20, seed=2), 7)], BATCH, 5, torch.device("cpu"))
    dense = to_dense(one)
    rows = torch.randn(3, BATCH, 5, dtype=torch.float64)
    columns = torch.randn(3, BATCH, 7, dtype=torch.float64)
    assert torch.allclose(one.pull(rows), torch.einsum("nbt,btu->nbu", rows, dense))
    assert torch.allclose(one.push(columns), torch.einsum("btu,nbu->nbt", dense, columns))


@pytest.mark.parametrize("seed", range(3))
def test_one_map_after_another(seed):
    (one,) = make_maps([(make_relation(5, 7, 20, seed), 7)], BATCH, 5, torch.device("cpu"))
    (two,) = make_maps([(make_relation(7, 6, 30, seed + 9), 6)], BATCH, 7, torch.device("cpu"))
    both = one.compose(two)
    assert both.shape == (BATCH, 5, 6)
    assert torch.allclose(to_dense(both), to_dense(one) @ to_dense(two))


def test_an_identity_is_known():
    sample, token = torch.cartesian_prod(torch.arange(BATCH), torch.arange(5)).T
    relation = torch.stack([sample, token, token, torch.ones_like(token)], 1).double()
    (same,) = make_maps([(relation, 5)], BATCH, 5, torch.device("cpu"))
    moved = relation.clone()
    moved[:, 2] = (moved[:, 2] + 1) % 5
    (other,) = make_maps([(moved, 5)], BATCH, 5, torch.device("cpu"))
    assert same.is_identity
    assert not other.is_identity
    assert torch.equal(same.compose(other).upstream, other.upstream)
