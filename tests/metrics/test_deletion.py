"""The engine of deletion curves against plain loops."""

import math

import pytest
import torch

from whence import WhenceError
from whence.metrics import deletion as d

WHOLE = (0.0, *d.FRACTIONS, 1.0)


def sort_plainly(scores: list[float], fraction: float, order: str) -> list[bool]:
    sign = -1 if order == "highest" else 1
    sequence = sorted(range(len(scores)), key=lambda unit: (sign * scores[unit], unit))
    deleted = set(sequence[: int(fraction * len(scores) + 1e-9)])
    return [unit in deleted for unit in range(len(scores))]


@pytest.mark.parametrize("order", ["highest", "lowest"])
@pytest.mark.parametrize("units", [1, 7, 10, 100, 196])
def test_ranks_are_those_of_a_plain_sort(order, units):
    scores = torch.randint(-3, 4, (4, units)).float()  # with many ties
    scores[3] = 0.5
    ranks, counts = d.rank_units(scores, order), d.count_units(units, WHOLE)
    for fraction, count in zip(WHOLE, counts.tolist(), strict=True):
        expected = [sort_plainly(one, fraction, order) for one in scores.tolist()]
        assert (ranks < count).tolist() == expected


@pytest.mark.parametrize("order", ["highest", "lowest"])
def test_units_that_are_not_allowed_are_never_deleted(order):
    scores = torch.randint(-3, 4, (5, 12)).float()
    allowed = torch.rand(5, 12) > 0.4
    ranks = d.rank_units(scores, order, allowed)
    for one, ok, rank in zip(scores, allowed, ranks, strict=True):
        assert rank[~ok].eq(12).all()
        assert rank[ok].tolist() == d.rank_units(one[ok][None], order)[0].tolist()


def test_counts_are_those_of_the_published_protocols():
    assert d.count_units(10, WHOLE).tolist() == list(range(11))
    assert d.count_units(100, [0.29]).tolist() == [29]  # 0.29 * 100 is a little less than 29
    assert d.count_units(224 * 224, d.FRACTIONS).tolist() == [int(50176 * f) for f in d.FRACTIONS]
    assert d.count_units(torch.tensor([4, 100]), [0, 0.01, 0.29, 1], "up").tolist() == [
        [0, 1, 2, 4],
        [0, 1, 29, 100],
    ]
    for units in (3, 9, 50):
        nearest = [max(1, round(f * units)) for f in WHOLE]
        assert d.count_units(units, WHOLE, "nearest").tolist() == nearest


class Model:
    """A linear model of single units, which counts its rows."""

    def __init__(self, inputs: torch.Tensor, classes: int = 3) -> None:
        self.inputs, self.weights = inputs, torch.randn(inputs.shape[1], classes).double()
        self.chunks: list[int] = []

    def __call__(self, deleted, inputs):
        self.chunks.append(len(deleted))
        return (self.inputs[inputs] * ~deleted) @ self.weights


def test_logits_are_those_of_a_loop():
    model = Model(torch.randn(3, 70).double())
    scores, inputs = torch.randn(5, 70), torch.tensor([0, 2, 1, 1, 0])
    ranks, counts = d.rank_units(scores, "lowest"), d.count_units(70, WHOLE)
    calls: list[tuple[int, int]] = []
    found = d.delete_in_order(
        ranks, counts, model, inputs, chunk_size=8, progress=lambda *at: calls.append(at)
    )
    assert found.shape == (5, 11, 3)
    for at, source in enumerate(inputs.tolist()):
        for step, count in enumerate(counts.tolist()):
            kept = model.inputs[source].clone()
            kept[scores[at].argsort(stable=True)[:count]] = 0
            assert torch.allclose(found[at, step], kept @ model.weights)
    # Nothing deleted, and everything deleted, are the same for the maps of an input.
    rows = 5 * 9 + 2 * 3
    assert sum(model.chunks) == rows
    assert max(model.chunks) == 8
    assert calls == [(min(8 * n, rows), rows) for n in range(1, math.ceil(rows / 8) + 1)]


def test_equal_rows_run_once_and_rows_of_like_length_together():
    model = Model(torch.randn(2, 130).double())
    rows = torch.rand(6, 130) > torch.linspace(0.1, 0.9, 6)[:, None]
    deleted, inputs = torch.cat([rows, rows, rows]), torch.tensor([0] * 12 + [1] * 6)
    lengths = []

    def run(deleted, inputs):
        lengths.extend((~deleted).sum(1).tolist())
        return model(deleted, inputs)

    found = d.run_without(deleted, run, inputs)
    assert model.chunks == [12]
    assert lengths == sorted(lengths)
    assert torch.allclose(found, (model.inputs[inputs] * ~deleted) @ model.weights)


def test_chunks_are_halved_where_memory_is_short():
    model = Model(torch.randn(1, 40).double())

    def run(deleted, inputs):
        if len(deleted) > 3:
            raise torch.OutOfMemoryError("full")
        return model(deleted, inputs)

    deleted = torch.rand(20, 40) > 0.5
    found = d.run_without(deleted, run, chunk_size=16)
    assert torch.allclose(found, (model.inputs * ~deleted) @ model.weights)
    assert max(model.chunks) == 2


def test_bad_requests_are_refused():
    scores = torch.zeros(2, 5)
    for call in (
        lambda: d.count_units(5, [1.1]),
        lambda: d.rank_units(scores, "sideways"),
        lambda: d.rank_units(scores[0], "highest"),
        lambda: d.rank_units(scores.log() - scores.log(), "highest"),
    ):
        with pytest.raises(WhenceError):
            call()


def test_all_pairs_of_units_are_different_rows():
    pairs = torch.combinations(torch.arange(130))
    deleted = torch.zeros(len(pairs), 130, dtype=torch.bool).scatter_(1, pairs, True)
    twice = torch.cat([deleted, deleted.flip(0)])
    chunks = []

    def run(rows, inputs):
        chunks.append(len(rows))
        return (rows * torch.arange(130.0)).sum(1, keepdim=True) + inputs[:, None]

    found = d.run_without(twice, run)
    assert chunks == [len(pairs)]
    assert torch.equal(found[:, 0], torch.cat([pairs, pairs.flip(0)]).sum(1).float())
