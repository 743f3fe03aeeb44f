"""Graphs split where they repeat."""

import torch
from torch import nn

from tests.engine.compiled.blocks import Block
from whence.engine.compiled.graph import record_graph
from whence.engine.compiled.regions import split_regions


def regions_of(compute):
    return split_regions(record_graph(compute, [torch.randn(3, 6)]).graph)


def test_equal_blocks_are_equal_regions():
    regions, _ = regions_of(nn.Sequential(*(Block() for _ in range(7))))
    assert len(regions) == 7
    assert len({region.code for region in regions}) == 1
    assert all(region.outputs for region in regions)


def test_two_repetitions_are_both_found():
    class Wide(Block):
        def forward(self, x):
            return super().forward(x).sin().cos()

    blocks = [Block() for _ in range(3)] + [Wide() for _ in range(4)]
    regions, _ = regions_of(nn.Sequential(*blocks))
    assert len({region.code for region in regions}) <= 4
    assert len(regions) >= 7


def test_short_repetitions_are_not_split():
    regions, _ = regions_of(lambda x: x.sin().cos().sin().cos().sin().cos())
    assert len(regions) == 1


def test_values_are_released_after_their_last_use():
    regions, returned = regions_of(nn.Sequential(*(Block() for _ in range(6))))
    computed = {name for region in regions for name in region.outputs}
    released = [name for region in regions for name in region.released]
    assert len(released) == len(set(released))
    for number, region in enumerate(regions):
        later = {name for after in regions[number + 1 :] for name in after.inputs}
        assert not later & set(region.released)
    assert {name for region in regions for name in region.inputs} & computed <= set(released)
    assert not set(returned) & set(released)
