"""Layouts for tests that build evidence by hand."""

from torch import Tensor

from whence.layout import FoundLayout, Layout, find_layout
from whence.tracing import Trace
from whence.tracing.dependence import find_fields, place_keys


def make_layout(
    grid: tuple[int, ...] | None, prefix: int, tokens: int, size: tuple[int, ...] = (), **facts
) -> FoundLayout:
    """A layout of equal cells on the last dimensions, whose units are the last tokens in order."""
    cells = tuple(
        tuple((n * length // count, (n + 1) * length // count) for n in range(count))
        for length, count in zip(size, grid or (), strict=False)
    )
    axes = tuple(range(1, 1 + len(cells)))
    units = (tuple(range(prefix, tokens)),)
    return FoundLayout(grid, prefix, tokens=tokens, units=units, axes=axes, cells=cells, **facts)


def prove_layout(trace: Trace, main: Tensor, given: Layout | None = None) -> FoundLayout:
    """The layout of a trace, whose only input is the given one."""
    fields = find_fields(trace, place_keys(trace, trace.sites[0]), trace.inputs[0].name, main.shape)
    return find_layout(given or Layout(), main, fields)
