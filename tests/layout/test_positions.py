"""Layouts that are found from the fields of tokens, or stated."""

import pytest
import torch
from torch import nn

from tests.layouts import make_layout
from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, Layout, WhenceError
from whence.layout import TokenFields, compute_pooling, divide_input, find_layout

IMAGE = torch.zeros(1, 3, 24, 24)


def make_fields(owners: torch.Tensor, tokens: int) -> TokenFields:
    """Fields of an image whose pixels have these tokens, the same in all channels."""
    return TokenFields.from_owners(owners[None, None].expand(1, 3, -1, -1), tokens)


def number_patches(rows: int, columns: int, side: int, prefix: int = 0) -> torch.Tensor:
    numbers = torch.arange(rows * columns).reshape(rows, columns) + prefix
    return numbers.repeat_interleave(side, 0).repeat_interleave(side, 1)


@pytest.mark.parametrize(("rows", "columns", "prefix", "suffix"), [(3, 3, 1, 0), (2, 4, 0, 5)])
def test_patches_between_other_tokens(rows, columns, prefix, suffix):
    owners, tokens = number_patches(rows, columns, 4, prefix), rows * columns + prefix + suffix
    image = torch.zeros(1, 3, *owners.shape)
    found = find_layout(Layout(), image, make_fields(owners, tokens))
    assert (found.grid, found.prefix, found.doubt) == ((rows, columns), prefix, "")
    assert found.units == (tuple(range(prefix, prefix + rows * columns)),)
    marked = found.mark_input_tokens(torch.device("cpu"))
    expected = [False] * prefix + [True] * rows * columns + [False] * suffix
    assert marked.tolist() == [expected]


def test_units_are_in_reading_order_whatever_the_order_of_tokens():
    order = torch.randperm(9)
    owners = order[number_patches(3, 3, 8)]
    found = find_layout(Layout(), IMAGE, make_fields(owners, 9))
    assert found.grid == (3, 3)
    assert found.units == (tuple(order.tolist()),)
    scores = torch.rand(2, 1, 9)
    assert torch.equal(found.to_units(scores), scores[..., order])
    assert torch.equal(found.to_tokens(found.to_units(scores)), scores)


def test_each_pixel_counts_once_and_unread_ones_nowhere():
    owners = torch.full((24, 24), -1)
    owners[:20, :20] = number_patches(2, 2, 10)
    owners[:20, 20] = owners[:20, 19]  # the last column of patches is wider
    found = find_layout(Layout(), IMAGE, make_fields(owners, 4))
    numbers = found.number_elements(torch.Size((3, 24, 24)), torch.device("cpu"))
    assert torch.equal(numbers[0], owners)


@pytest.mark.parametrize(
    "owners",
    [
        number_patches(3, 3, 8).clamp(max=7),  # one token for two patches
        torch.where(torch.eye(24, dtype=torch.bool), 9, number_patches(3, 3, 8)),  # a diagonal
        torch.arange(24 * 24).reshape(24, 24) % 9,
    ],
)
def test_what_is_no_grid_is_plain_tokens(owners):
    found = find_layout(Layout(), IMAGE, make_fields(owners, 10))
    assert (found.grid, found.units) == (None, (tuple(range(10)),))
    assert "could not be proven" in found.doubt
    assert "Layout(grid=" in found.doubt
    stated = find_layout(Layout(grid=(3, 3)), IMAGE, make_fields(owners, 10))
    assert (stated.grid, stated.prefix, stated.doubt) == ((3, 3), 1, "")
    numbers = stated.number_elements(torch.Size((3, 24, 24)), torch.device("cpu"))
    assert torch.equal(numbers[0], number_patches(3, 3, 8))


def test_a_stated_layout_must_not_contradict_what_was_proven():
    fields = make_fields(number_patches(3, 3, 8, 1), 10)
    assert find_layout(Layout(grid=(3, 3), prefix=1), IMAGE, fields).grid == (3, 3)
    for wrong in (Layout(grid=(1, 9)), Layout(prefix=2), Layout(grid=(5, 5))):
        with pytest.raises(WhenceError, match=r"stand for a grid of 3x3 of the input, from"):
            find_layout(wrong, IMAGE, fields)
    for positions in ({"pooled": ()}, {"pooled": (10,)}, {"special": (-1,)}):
        with pytest.raises(WhenceError, match="name some of the tokens 0 to 9"):
            find_layout(Layout(**positions), IMAGE, fields)


def test_a_stated_grid_must_fit_the_number_of_tokens():
    fields = make_fields(torch.arange(24 * 24).reshape(24, 24) % 9, 9)
    for wrong in (Layout(grid=(5, 5)), Layout(grid=(2, 4), prefix=3)):
        with pytest.raises(WhenceError, match=r"The layout does not fit: .* the model's 9 tokens"):
            find_layout(wrong, IMAGE, fields)


def test_ids_and_rows_of_embeddings_are_units():
    ids = torch.zeros(2, 5, dtype=torch.long)
    owners = torch.tensor([[2, 3, 4, 5, 6], [2, 3, -1, 5, 6]])
    found = find_layout(Layout(), ids, TokenFields.from_owners(owners, 8))
    assert found.grid is None
    assert found.units == ((2, 3, 4, 5, 6), (2, 3, -1, 5, 6))
    scores = torch.rand(1, 2, 8)
    units = found.to_units(scores)
    assert torch.equal(units[0, 0], scores[0, 0, 2:7])
    assert units[0, 1, 2] == 0
    embeddings = torch.zeros(2, 5, 4)
    rows = TokenFields.from_owners(torch.arange(5)[None, :, None].expand(2, 5, 4), 5)
    assert find_layout(Layout(), embeddings, rows).units == ((0, 1, 2, 3, 4),)


def test_padding_of_a_signal_is_padding_of_its_segments():
    owners = torch.arange(12)[None].expand(2, 12) // 3 + 1
    found = find_layout(Layout(), torch.zeros(2, 12), TokenFields.from_owners(owners, 5))
    assert found.grid == (4,)
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[1, 5:] = True
    marked = found.mark_padding(padding, 2)
    assert marked.tolist() == [[False] * 5, [False, False, False, True, True]]
    # A token that depends on nothing in one sample only is padding there.
    partly = owners.clone()
    partly[1, 9:] = -1
    found = find_layout(Layout(), torch.zeros(2, 12), TokenFields.from_owners(partly, 5))
    assert found.mark_padding(None, 2).tolist() == [[False] * 5, [False] * 4 + [True]]


@pytest.mark.parametrize(
    ("main", "grid", "units"),
    [
        (torch.zeros(1, 3, 32, 64), (8, 16), 128),
        (torch.zeros(1, 3, 30, 20), (15, 10), 150),
        (torch.zeros(1, 3, 8, 8), (8, 8), 64),
        (torch.zeros(1, 1000), (100,), 100),
        (torch.zeros(1, 7, 4), None, 7),
        (torch.zeros(1, 9, dtype=torch.long), None, 9),
    ],
)
def test_equal_parts_where_no_token_tells(main, grid, units):
    found = divide_input(Layout(), main)
    assert (found.grid, found.unit_count, found.tokens) == (grid, units, units)
    if main.is_floating_point():
        numbers = found.number_elements(main.shape[1:], torch.device("cpu"))
        counts = numbers.expand(main.shape[1:]).flatten().bincount(minlength=units)
        assert counts.sum() == main.numel()
        assert counts.min() > 0


def test_pooling_weights_follow_the_gradient():
    dependence = torch.tensor(
        [[3.0, 0, 0, 0], [0, 1, 2, 3], [2, 0, 0, 0], [6, 1, 1, 0], [0, 0, 0, 0]]
    )
    weights = compute_pooling(dependence, make_layout(None, 1, 4))
    expected = [
        [1, 0, 0, 0],
        [0, 1 / 3, 1 / 3, 1 / 3],
        [1, 0, 0, 0],
        [0.75, 0.125, 0.125, 0],
        [0] * 4,
    ]
    assert torch.allclose(weights, torch.tensor(expected))


def test_given_pooled_tokens():
    model = HandWrittenViT()
    given = Explainer(model, layout=Layout(pooled=(3, 4))).explain(
        make_images(32, 32), method="tiba", keep_evidence=True
    )
    assert given.evidence.pooling[0].nonzero().flatten().tolist() == [3, 4]
    found = Explainer(model).explain(make_images(32, 32), method="tiba")
    assert not torch.allclose(given.scores, found.scores)


def test_patches_that_are_cut_out_by_hand():
    class Odd(nn.Module):
        """Patches of 4 x 16 pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.vit = HandWrittenViT(patch=8, size=32)
            self.embed = nn.Linear(3 * 4 * 16, 32)

        def forward(self, image):
            x = image.reshape(len(image), 3, 8, 4, 2, 16).permute(0, 2, 4, 1, 3, 5).flatten(3)
            x = self.embed(x.flatten(1, 2))
            for block in self.vit.blocks:
                x = block(x)
            return self.vit.head(x.mean(1))

    result = Explainer(Odd()).explain(make_images(32, 32))
    assert result.grid == (8, 2)
    assert result.heatmap((32, 32)).shape == (3, 32, 32)
