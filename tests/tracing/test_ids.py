"""Token ids that a model moves, shifts or hashes before it looks them up."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo import HandWrittenViT
from whence import Explainer
from whence.tracing import record

BATCH, LENGTH, WIDTH = 2, 6, 32


def shift(ids: Tensor) -> Tensor:
    """As the decoders of BART and T5 do."""
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = 2
    shifted.masked_fill_(shifted == -100, 1)
    return shifted


def add_prefix(ids: Tensor) -> Tensor:
    return torch.cat([torch.full((len(ids), 2), 3), ids], 1)


def replace_some(ids: Tensor) -> Tensor:
    ids = ids.clone()
    ids[ids == 7] = 1
    ids[:, 3] = 4
    return ids


EVERY = list(range(LENGTH))
CHANGES = {
    "as they are": (lambda ids: ids, EVERY),
    "view": (lambda ids: ids.view(-1, ids.shape[-1]).contiguous().long(), EVERY),
    "slice": (lambda ids: ids[:, 1:-1], EVERY[1:-1]),
    "flip": (lambda ids: ids.flip(1), EVERY[::-1]),
    "roll": (lambda ids: torch.roll(ids, 2, 1), [4, 5, 0, 1, 2, 3]),
    "hash": (lambda ids: ((ids + 1) * 31) % 40, EVERY),
    "clamp": (lambda ids: ids.clamp(min=0), EVERY),
    "shift": (shift, [-1, 0, 1, 2, 3, 4]),
    "prefix": (add_prefix, [-1, -1, *EVERY]),
    "pad": (lambda ids: F.pad(ids, (0, 2), value=9), [*EVERY, -1, -1]),
    "where": (lambda ids: torch.where(torch.arange(6) < 2, ids, 5), [0, 1, -1, -1, -1, -1]),
    "masked_fill": (lambda ids: ids.masked_fill(torch.arange(6) > 3, 5), [0, 1, 2, 3, -1, -1]),
    "assigned": (replace_some, [0, 1, 2, -1, 4, 5]),
    "table": (lambda ids: torch.arange(40).flip(0)[ids], EVERY),
    "gather": (lambda ids: ids.gather(1, torch.tensor([[5, 0, 0]] * BATCH)), [5, 0, 0]),
    "stack": (lambda ids: torch.stack([ids[:, 0], ids[:, 5]], 1), [0, 5]),
    "expand": (lambda ids: ids[:, None].expand(-1, 2, -1).flatten(1), [*EVERY, *EVERY]),
    "unbind": (lambda ids: torch.cat([x[:, None] for x in ids.unbind(1)[:2]], 1), [0, 1]),
}


class Reader(nn.Module):
    """Looks changed ids up, and attends to them."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change
        torch.manual_seed(0)
        self.words, self.vit = nn.Embedding(40, WIDTH), HandWrittenViT()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(self.change(ids))
        for block in self.vit.blocks:
            x = block(x)
        return self.vit.head(x.mean(1))


@pytest.fixture
def ids() -> Tensor:
    numbers = torch.randint(8, 40, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    return numbers.index_fill(1, torch.tensor([2]), 11)


@pytest.mark.parametrize("name", CHANGES)
def test_rows_are_those_that_ids_come_from(name, ids):
    change, expected = CHANGES[name]
    (place,) = record(Reader(change), (ids,), {}, 0).inputs
    numbers = [[n if n < 0 else n + sample * LENGTH for n in expected] for sample in range(BATCH)]
    assert place.rows.tolist() == numbers
    # The numbers tell which id it is, unless that was changed.
    if name in ("slice", "flip", "roll", "shift", "prefix", "pad", "stack", "gather"):
        known = place.rows >= 0
        assert torch.equal(ids.flatten()[place.rows[known]], change(ids)[known])


@pytest.mark.parametrize("name", CHANGES)
def test_scores_belong_to_the_ids(name, ids):
    change, expected = CHANGES[name]
    model = Reader(change)
    result = Explainer(model).explain(ids, 1, method="input_x_gradient")
    embedded = model.words(change(ids)).detach().requires_grad_()
    x = embedded
    for block in model.vit.blocks:
        x = block(x)
    (gradient,) = torch.autograd.grad(model.vit.head(x.mean(1))[:, 1].sum(), embedded)
    scores = torch.zeros(BATCH, LENGTH)
    for row, unit in enumerate(expected):
        if unit >= 0:
            scores[:, unit] += (embedded * gradient).detach().sum(-1)[:, row]
    assert torch.allclose(result.scores, scores, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    "other",
    [
        lambda ids: torch.zeros_like(ids),
        lambda ids: torch.arange(ids.shape[1]).expand_as(ids),
        lambda ids: ids.ne(1).int().cumsum(1).type_as(ids),
        lambda ids: (ids > 20).long(),
        lambda ids: ids.new_ones(ids.shape),
    ],
)
def test_other_whole_numbers_are_not_followed(other, ids):
    class Positions(Reader):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + self.words(other(ids)).mean((1, 2))[:, None]

    trace = record(Positions(lambda ids: ids), (ids,), {}, 0)
    assert [place.name for place in trace.inputs] == [0]


def test_all_places_where_ids_are_read_count():
    class Twice(Reader):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + super().forward(shift(ids))

    model, ids = Twice(lambda ids: ids), torch.randint(8, 40, (BATCH, LENGTH))
    alone, shifted = Reader(lambda ids: ids), Reader(shift)
    alone.load_state_dict(model.state_dict())
    shifted.load_state_dict(model.state_dict())
    for method in ("input_x_gradient", "lrp"):
        explained = [
            Explainer(one).explain(ids, 1, method=method, rules="stable").scores
            for one in (model, alone, shifted)
        ]
        if method == "input_x_gradient":
            assert torch.allclose(explained[0], explained[1] + explained[2], rtol=1e-3, atol=1e-7)
    covered = Explainer(model).explain(ids, 1, method="occlusion").scores
    with torch.no_grad():
        whole, position = model(ids)[:, 1], 2
        parts = []
        for change, row in ((lambda ids: ids, position), (shift, position + 1)):
            x = model.words(change(ids))
            x[:, row] = 0
            for block in model.vit.blocks:
                x = block(x)
            parts.append(model.vit.head(x.mean(1))[:, 1])
    assert torch.allclose(covered[:, position], whole - sum(parts), rtol=1e-3, atol=1e-6)
