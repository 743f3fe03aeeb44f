"""Units of a layout: their tokens, their elements and their padding, by plain loops."""

import pytest
import torch

from whence.layout import FoundLayout

CPU = torch.device("cpu")
SHUFFLED = FoundLayout(tokens=5, units=((3, -1, 1),))
EACH = FoundLayout(tokens=5, units=((1, 2, 3), (3, -1, 1)))


def test_tokens_of_units_are_marked():
    assert SHUFFLED.mark_unit_tokens(CPU).tolist() == [[False, True, False, True, False]]
    assert EACH.mark_unit_tokens(CPU).tolist() == [
        [False, True, True, True, False],
        [False, True, False, True, False],
    ]
    special = FoundLayout(special=(1, 4), tokens=5, units=EACH.units)
    assert special.mark_unit_tokens(CPU).tolist() == EACH.mark_unit_tokens(CPU).tolist()
    assert special.mark_input_tokens(CPU).tolist() == [
        [False, False, True, True, False],
        [False, False, False, True, False],
    ]
    assert EACH.mark_input_tokens(CPU).tolist() == EACH.mark_unit_tokens(CPU).tolist()


@pytest.mark.parametrize("layout", [SHUFFLED, EACH], ids=["for all", "for each sample"])
@pytest.mark.parametrize("batch", [(2,), (3, 2)])
def test_values_of_tokens_become_those_of_units_and_back(layout, batch):
    values = torch.arange(1.0, 1 + 5 * torch.Size(batch).numel()).reshape(*batch, 5)
    units = layout.to_units(values)
    tokens = layout.to_tokens(units)
    assert units.shape == (*batch, 3)
    assert tokens.shape == values.shape
    for row in torch.cartesian_prod(*map(torch.arange, batch)).reshape(-1, len(batch)).tolist():
        numbers = layout.units[row[-1] % len(layout.units)]
        of_row = values[tuple(row)].tolist()
        assert units[tuple(row)].tolist() == [of_row[n] if n >= 0 else 0 for n in numbers]
        assert tokens[tuple(row)].tolist() == [of_row[n] if n in numbers else 0 for n in range(5)]


def test_rows_may_be_of_any_samples():
    values = torch.arange(1.0, 16).reshape(3, 5)
    samples = torch.tensor([1, 0, 1])
    assert EACH.to_units(values, samples).tolist() == [[4, 0, 2], [7, 8, 9], [14, 0, 12]]
    assert SHUFFLED.to_units(values, samples).tolist() == [[4, 0, 2], [9, 0, 7], [14, 0, 12]]


def test_units_in_order_are_a_view():
    values = torch.rand(2, 5)
    view = FoundLayout(tokens=5, units=((1, 2, 3),)).to_units(values)
    assert torch.equal(view, values[:, 1:4])
    assert view.data_ptr() == values[:, 1:].data_ptr()
    assert FoundLayout(tokens=5).to_units(values).shape == (2, 0)


def test_units_are_counted():
    empty = FoundLayout()
    assert (empty.unit_count, empty.tokens, empty.by_value) == (0, 0, False)
    assert EACH.unit_count == 3


# Elements ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "axes", "cells"),
    [
        ((7,), (0,), (((1, 3), (3, 6)),)),
        ((2, 6, 5), (1, 2), (((0, 2), (2, 6)), ((0, 1), (2, 3), (3, 5)))),
        ((4, 2, 3, 3), (0, 2, 3), (((0, 2), (2, 4)), ((0, 3),), ((1, 2), (2, 3)))),
    ],
)
def test_elements_have_the_number_of_their_unit(shape, axes, cells):
    layout = FoundLayout(axes=axes, cells=cells)
    numbers = layout.number_elements(torch.Size(shape), CPU)
    assert numbers.shape == tuple(n if d in axes else 1 for d, n in enumerate(shape))
    for place in torch.ones(numbers.shape).nonzero().tolist():
        number = 0
        for axis, of_axis in zip(axes, cells, strict=True):
            inside = [n for n, (a, b) in enumerate(of_axis) if a <= place[axis] < b]
            number = -1 if number < 0 or not inside else number * len(of_axis) + inside[0]
        assert numbers[tuple(place)] == number


def test_each_axis_must_have_cells():
    with pytest.raises(ValueError, match="zip"):
        FoundLayout(axes=(0, 1), cells=(((0, 2),),)).number_elements(torch.Size((2, 2)), CPU)


# Padding -----------------------------------------------------------------------------------------
SIGNAL = FoundLayout(
    tokens=5, units=((3, 2, 1),), axes=(0,), cells=(((0, 4), (4, 7), (8, 12)),), grid=(3,)
)


def mark(*padded: int, length: int, batch: int = 1) -> torch.Tensor:
    """Padding at some places, the same in all samples."""
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[:, list(padded)] = True
    return mask


def test_padding_of_units_and_of_tokens():
    assert EACH.mark_padding(mark(0, 1, length=3, batch=2), 2).tolist() == [
        [False, True, True, False, False],
        [False, False, False, True, False],
    ]
    of_tokens = mark(1, 4, length=5, batch=2)
    assert EACH.mark_padding(of_tokens, 2).tolist() == of_tokens.tolist()
    assert EACH.mark_padding(None, 2) is None
    assert EACH.mark_padding(mark(0, length=4, batch=2), 2) is None
    image = FoundLayout(tokens=4, units=((0, 1, 2, 3),), axes=(1, 2), cells=(((0, 2), (2, 4)),) * 2)
    assert image.mark_padding(mark(0, length=16), 1) is None


@pytest.mark.parametrize("length", [12, 13, 20])
def test_a_segment_is_padding_if_all_of_it_is(length):
    for first in range(length):
        padded = set(range(first, length))
        marked = SIGNAL.mark_padding(mark(*padded, length=length), 1)
        expected = [False] * 5
        for token, (start, stop) in zip(SIGNAL.units[0], SIGNAL.cells[0], strict=True):
            expected[token] = set(range(start, stop)) <= padded
        assert marked.tolist() == [expected]
    marked = SIGNAL.mark_padding(mark(4, 5, 6, length=length), 1)  # in the middle
    assert marked.tolist() == [[False, False, True, False, False]]


def test_padding_of_another_length_is_not_that_of_the_signal():
    for length in (1, 4, 8, 11):
        assert SIGNAL.mark_padding(mark(0, length=length), 1) is None


def test_tokens_that_depend_on_nothing_are_padding():
    layout = FoundLayout(tokens=4, units=((1, 2),), absent=((1, 2), ()))
    empty = [[False, True, True, False], [False] * 4]
    assert layout.mark_padding(None, 2).tolist() == empty
    assert layout.mark_padding(None, 2, absent=False) is None
    given = torch.tensor([[True, False, False, False]] * 2)
    assert layout.mark_padding(given, 2).tolist() == [[True, True, True, False], given[1].tolist()]
    assert layout.mark_padding(given, 2, absent=False).tolist() == given.tolist()
    with pytest.raises(ValueError, match="zip"):
        layout.mark_padding(None, 3)
