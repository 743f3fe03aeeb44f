"""Layouts that are stated, and inputs that are divided where no token tells of their parts."""

import pytest
import torch

from tests.layouts import make_layout
from whence import Layout, WhenceError
from whence.layout import FoundLayout, TokenFields, compute_pooling, divide_input, find_layout


def read_mixed(main: torch.Tensor, tokens: int) -> TokenFields:
    """Fields that prove nothing: each token depends on all of the input."""
    return TokenFields.from_masks(torch.ones(tokens, *main.shape, dtype=torch.long))


def cut(length: int, size: int) -> tuple[tuple[int, int], ...]:
    """Cells of one size."""
    return tuple((start, start + size) for start in range(0, length, size))


# Proven ------------------------------------------------------------------------------------------
def test_rows_of_embeddings_are_units_in_no_grid():
    owners = torch.tensor([[3, -1, 1, 2], [1, -1, 3, 2]])[..., None].expand(2, 4, 5)
    found = find_layout(Layout(), torch.zeros(2, 4, 5), TokenFields.from_owners(owners, 6))
    assert (found.grid, found.axes, found.cells) == (None, (0,), (cut(4, 1),))
    assert found.units == ((3, -1, 1, 2), (1, -1, 3, 2))
    assert (found.tokens, found.prefix, found.absent, found.doubt) == (6, 1, (), "")


def test_rows_may_lie_along_the_last_dimension():
    owners = torch.arange(6)[None, None].expand(1, 2, 6)
    found = find_layout(Layout(), torch.zeros(1, 2, 6), TokenFields.from_owners(owners, 6))
    assert (found.grid, found.axes, found.cells) == (None, (1,), (cut(6, 1),))
    assert (found.units, found.prefix) == ((tuple(range(6)),), 0)


def test_segments_of_different_lengths_and_single_pixels_are_a_grid():
    owners = torch.tensor([[0, 1, 1, 2, 2]])
    found = find_layout(Layout(), torch.zeros(1, 5), TokenFields.from_owners(owners, 3))
    assert (found.grid, found.cells) == ((3,), (((0, 1), (1, 3), (3, 5)),))
    pixels = torch.arange(6).reshape(1, 1, 2, 3)
    found = find_layout(Layout(), torch.zeros(1, 1, 2, 3), TokenFields.from_owners(pixels, 6))
    assert (found.grid, found.axes, found.absent) == ((2, 3), (1, 2), ())


def test_tokens_that_depend_on_nothing_in_some_samples():
    owners = torch.tensor([[1, 1, 2, 2], [1, 1, -1, -1], [-1, -1, 2, 2]])
    found = find_layout(Layout(), torch.zeros(3, 4), TokenFields.from_owners(owners, 4))
    assert (found.grid, found.units, found.absent) == ((2,), ((1, 2),), ((), (2,), (1,)))
    # Where samples have tokens of their own, each of these has its part.
    owners = torch.tensor([[0, 0, 1, 1], [1, 1, 2, 2]])
    found = find_layout(Layout(), torch.zeros(2, 4), TokenFields.from_owners(owners, 3))
    assert (found.units, found.absent) == (((0, 1), (1, 2)), ())


def test_ids_without_any_token_have_no_prefix():
    ids = torch.zeros(1, 3, dtype=torch.long)
    owners = torch.full((1, 3), -1)
    found = find_layout(Layout(), ids, TokenFields.from_owners(owners, 2))
    assert (found.units, found.prefix) == (((-1, -1, -1),), 0)


def test_facts_that_are_stated_are_kept_beside_what_is_proven():
    owners = torch.arange(1, 7)[None, :, None].expand(1, 6, 4)
    main, fields = torch.zeros(1, 6, 4), TokenFields.from_owners(owners, 7)
    found = find_layout(Layout(grid=(2, 3), pooled=(0, 6), special=(0,)), main, fields)
    assert (found.grid, found.prefix, found.units) == ((2, 3), 1, (tuple(range(1, 7)),))
    assert (found.pooled, found.special, found.by_value) == ((0, 6), (0,), False)
    assert find_layout(Layout(), main, fields._replace(by_value=True)).by_value
    assert find_layout(Layout(prefix=1), main, fields).grid is None
    for wrong in (Layout(grid=(2, 2)), Layout(prefix=0), Layout(prefix=2)):
        with pytest.raises(WhenceError, match="stand for single rows of the input, from token 1"):
            find_layout(wrong, main, fields)
    with pytest.raises(WhenceError, match="from token 1 on"):
        find_layout(Layout(prefix=2, grid=(2, 3)), main, fields)
    for wrong in (Layout(pooled=(0, 7)), Layout(special=(0, -1))):
        with pytest.raises(WhenceError, match="name some of the tokens 0 to 6"):
            find_layout(wrong, main, fields)


# Not proven --------------------------------------------------------------------------------------
def test_without_a_proof_tokens_are_units():
    main = torch.zeros(1, 3, 8, 8)
    given = Layout(prefix=2, pooled=(0,), special=(1,))
    fields = read_mixed(main, 5)._replace(by_value=True)
    found = find_layout(given, main, fields)
    assert (found.grid, found.prefix, found.units, found.tokens) == (None, 2, ((2, 3, 4),), 5)
    assert (found.pooled, found.special, found.by_value) == ((0,), (1,), True)
    assert "the model's 5 tokens" in found.doubt
    assert "of size 3x8x8," in found.doubt
    assert find_layout(Layout(), main, fields).units == ((0, 1, 2, 3, 4),)


def test_ids_that_are_not_proven_are_tokens():
    ids = torch.zeros(1, 4, dtype=torch.long)
    found = find_layout(Layout(), ids, read_mixed(ids, 3))
    assert found.units == ((0, 1, 2),)
    assert "could not be proven" in found.doubt


@pytest.mark.parametrize(
    ("shape", "grid", "axes"),
    [
        ((8, 3, 4, 6), (4, 2, 3), (0, 2, 3)),  # frames, channels, rows, columns
        ((3, 8, 4, 6), (4, 2, 3), (1, 2, 3)),
        ((3, 3, 4, 6), (3, 2, 3), (0, 2, 3)),
        ((8, 3, 4, 6), (2, 3), (2, 3)),
        ((8, 4, 6), (4, 2, 3), (0, 1, 2)),
        ((3, 4, 6), (2, 3), (1, 2)),
        ((3, 4, 6), (3,), (2,)),
        ((4, 6), (2, 3), (0, 1)),
        ((4, 6), (2,), (0,)),
        ((6,), (3,), (0,)),
    ],
)
def test_a_stated_grid_lies_along_the_dimensions_of_its_kind(shape, grid, axes):
    main, count = torch.zeros(1, *shape), torch.Size(grid).numel()
    for prefix in (0, 2):
        found = find_layout(Layout(grid=grid), main, read_mixed(main, prefix + count))
        assert (found.grid, found.axes, found.prefix, found.doubt) == (grid, axes, prefix, "")
        assert found.units == (tuple(range(prefix, prefix + count)),)
        sizes = [shape[axis] // n for axis, n in zip(axes, grid, strict=True)]
        cells = [cut(shape[axis], size) for axis, size in zip(axes, sizes, strict=True)]
        assert found.cells == tuple(cells)


def test_a_stated_grid_must_have_tokens_and_dimensions():
    main = torch.zeros(1, 12)
    fields = read_mixed(main, 5)
    assert find_layout(Layout(grid=(4,), prefix=1), main, fields).prefix == 1
    for wrong in (Layout(grid=(2, 2)), Layout(grid=(6,)), Layout(grid=(4,), prefix=0)):
        with pytest.raises(WhenceError, match=r"patches are not the model's 5 tokens"):
            find_layout(wrong, main, fields)


# Equal parts -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "given", "grid", "shown", "axes"),
    [
        ((3, 224, 224), None, (14, 14), True, (1, 2)),
        ((3, 640, 480), None, (40, 30), True, (1, 2)),
        ((3, 299, 299), None, (23, 23), True, (1, 2)),
        ((3, 227, 227), None, (14, 14), True, (1, 2)),
        ((3, 32, 64), None, (8, 16), True, (1, 2)),
        ((1, 28, 28), None, (14, 14), True, (1, 2)),
        ((3, 8, 20), None, (8, 20), True, (1, 2)),
        ((3, 5, 40), None, (5, 14), True, (1, 2)),
        ((3, 32, 64), (4, 2), (4, 2), True, (1, 2)),
        ((4, 3, 16, 32), None, (4, 8, 16), True, (0, 2, 3)),
        ((8, 3, 4, 4), (4, 2, 2), (4, 2, 2), True, (0, 2, 3)),
        ((200, 5), None, (100,), True, (0,)),
        ((1000,), None, (100,), True, (0,)),
        ((100,), None, (100,), False, (0,)),
        ((60, 7), None, (60,), False, (0,)),
        ((60,), (6,), (6,), True, (0,)),
        ((4, 6), (2, 3), (2, 3), True, (0, 1)),
    ],
)
def test_equal_parts_of_an_input(shape, given, grid, shown, axes):
    stated = Layout(grid=given, pooled=(1,), special=(0,))
    found = divide_input(stated, torch.zeros(1, *shape))
    assert (found.grid, found.axes) == (grid if shown else None, axes)
    count = torch.Size(grid).numel()
    assert (found.tokens, found.units, found.prefix) == (count, (tuple(range(count)),), 0)
    assert (found.pooled, found.special, found.doubt) == ((1,), (0,), "")
    assert f"Scores are of {'x'.join(map(str, grid))} equal parts" in found.note
    for axis, number, cells in zip(axes, grid, found.cells, strict=True):
        assert len(cells) == number
        assert [start for start, _ in cells] == [0, *(stop for _, stop in cells[:-1])]
        assert cells[-1][1] == shape[axis]
        sizes = {stop - start for start, stop in cells}
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("shape", "grid"),
    [((3, 8, 8), (9, 8)), ((3, 8, 8), (0, 8)), ((10,), (2, 2)), ((10,), (11,)), ((4, 6), ())],
)
def test_stated_grids_that_do_not_fit_the_input(shape, grid):
    with pytest.raises(WhenceError, match="The layout does not fit: an input of size"):
        divide_input(Layout(grid=grid), torch.zeros(2, *shape))


def test_ids_are_parts_of_their_own():
    found = divide_input(Layout(pooled=(1,), special=(0,)), torch.zeros(2, 4, dtype=torch.long))
    assert found == FoundLayout(
        prefix=0, pooled=(1,), special=(0,), tokens=4, units=((0, 1, 2, 3),)
    )


# Pooling -----------------------------------------------------------------------------------------
def test_stated_pooled_tokens_weigh_the_same():
    layout = make_layout(None, 1, 4, pooled=(0, 2))
    weights = compute_pooling(torch.rand(2, 3, 4), layout)
    assert weights.tolist() == [[[0.5, 0, 0.5, 0]] * 3] * 2


def test_queries_that_are_no_tokens_weigh_the_same():
    layout = make_layout(None, 1, 5)
    dependence = torch.tensor([[6.0, 1, 1, 0], [0, 0, 2, 0], [1, 0, 0, 3]])
    weights = compute_pooling(dependence, layout, of_tokens=False)
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 1, 0], [0.5, 0, 0, 0.5]])
    assert torch.allclose(weights, expected)


def test_groups_of_tokens_are_those_of_each_sample():
    layout = FoundLayout(special=(1,), tokens=4, units=((1, 2, 3), (0, 1, 2)))
    dependence = torch.tensor([[[1.0, 2, 3, 2], [4, 2, 1, 1]], [[0, 0, 5, 3], [0, 0, 0, 2]]])
    weights = compute_pooling(dependence, layout)
    expected = [
        [[3 / 16, 3 / 16, 5 / 16, 5 / 16], [5 / 16, 3 / 16, 5 / 16, 3 / 16]],
        [[0, 0, 0.5, 0.5], [0, 0, 0, 1]],
    ]
    assert torch.allclose(weights, torch.tensor(expected))
