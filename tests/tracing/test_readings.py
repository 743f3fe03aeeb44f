"""Readings at several places in one backward pass, and maps site by site."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tracing.helpers import predicted_classes, read_maps, record_case
from whence import rules
from whence.tracing.graph import find_blocks
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.readings import (
    MapReadings,
    PlaceReadings,
    fuse_chunks,
    iterate_sites,
    sum_chunks,
)

STABLE = rules.get("stable")
RULES = {"gradient": None, "relevance": STABLE}


def make_readings(attention) -> MapReadings:
    return MapReadings(attention, torch.empty(0), torch.empty(0))


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_chunks_of_heads_are_fused_as_all_heads_at_once(heads):
    maps = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    chunks = (make_readings(chunk) for chunk in maps.split(2, 1))
    reduce = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}[heads]
    found = fuse_chunks(chunks, lambda readings: 2 * readings.attention, heads)
    assert torch.allclose(found, reduce(2 * maps, 1))


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_chunks_of_queries_are_fused_as_all_queries_at_once(heads):
    maps = torch.randn(2, 5, 7, 4, dtype=torch.float64)
    chunks = (
        make_readings(of_site[:, :, rows])._replace(first_query=rows.start)
        for of_site in maps.split(2, 1)
        for rows in (slice(0, 3), slice(3, 6), slice(6, 7))
    )
    reduce = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}[heads]
    found = fuse_chunks(chunks, lambda readings: 2 * readings.attention, heads)
    assert torch.allclose(found, reduce(2 * maps, 1))


def test_a_site_without_heads_is_an_error():
    with pytest.raises(ValueError, match="at least one head"):
        fuse_chunks(iter(()), lambda readings: readings.attention, "mean")
    with pytest.raises(ValueError, match="at least one head"):
        sum_chunks(iter(()), lambda readings: readings.attention)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_chunks_add_up_to_what_all_heads_and_queries_do(dtype):
    maps = torch.randn(2, 5, 7, 7, dtype=torch.float64).tril().to(dtype)
    chunks = (
        make_readings(of_site[:, :, rows, : rows.stop])._replace(first_query=rows.start)
        for of_site in maps.split(2, 1)
        for rows in (slice(0, 3), slice(3, 6), slice(6, 7))
    )
    found = sum_chunks(chunks, lambda readings: 2 * readings.attention)
    every = 2 * maps.to(found.dtype)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    rounding = torch.finfo(dtype).eps * float(every.abs().sum((1, 2)).max())
    torch.testing.assert_close(found, every.sum((1, 2)), rtol=0, atol=rounding)


def test_no_matrix_of_all_queries_is_made_to_add_them_up():
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            if isinstance(output, torch.Tensor):
                self.numel = max(self.numel, output.numel())
            return output

    maps = torch.randn(1, 2, 1, 64)
    chunks = (make_readings(maps)._replace(first_query=query) for query in range(64))
    with Largest() as largest:
        sum_chunks(chunks, lambda readings: 2 * readings.attention)
    assert largest.numel == maps.numel()


@pytest.mark.parametrize("rule_set", [None, STABLE])
def test_places_of_several_kinds_are_read_together(rule_set):
    trace = record_case("hand-written")
    classes = torch.tensor([[0, 3]] * 3)
    blocks = find_blocks(trace)
    tokens = {"hidden": [(block.input, block.input_edge) for block in blocks]}
    places = PlaceReadings({"input": trace.leaves}, tokens)
    sites = iterate_sites(
        trace,
        trace.sites[1:],
        ["gradient"],
        {"gradient": classes},
        {"gradient": rule_set},
        release=False,
        others=places.edges,
        keep=lambda number, values: places.keep(number, values[0]),
    )
    maps = [part.gradient for chunks in sites for part in chunks()][::-1]
    found = places.finish(trace)
    expected = read_maps(trace, classes, rule_set)
    assert all(torch.equal(a, b) for a, b in zip(maps, expected[1:], strict=True))
    assert torch.equal(found["input"][0], trace.read(classes, trace.leaves, rule_set)[0])
    edges = [block.input_edge for block in blocks]
    hidden = trace.read(classes, edges, rule_set)
    assert all(torch.equal(a, b) for a, b in zip(found["hidden"], hidden, strict=True))


def test_nothing_is_read_where_nothing_is_asked_for():
    trace = record_case("hand-written")
    assert PlaceReadings({}, {"hidden": []}).finish(trace) == {"hidden": []}
    assert trace.read(predicted_classes(trace), []) == []


@pytest.mark.parametrize("kinds", [{"attention"}, {"gradient", "relevance"}, {"attention", *RULES}])
def test_sites_come_from_the_last_to_the_first(kinds):
    trace = record_case("timm-vit-fused")
    classes = torch.tensor([[0, 3]] * 3)
    expected = {"attention": trace.attention()}
    expected |= {kind: read_maps(trace, classes, how) for kind, how in RULES.items()}
    seeds = dict.fromkeys(RULES, classes)
    sites = list(iterate_sites(trace, trace.sites, kinds, seeds, RULES, release=False))
    for number, chunks in enumerate(reversed(sites)):
        (readings,) = chunks()
        for kind, values in expected.items():
            found = getattr(readings, kind)
            assert torch.equal(found, values[number]) if kind in kinds else found.numel() == 0


def test_a_site_is_released_before_the_next_is_read():
    trace = record_case("timm-vit-fused")
    seeds = dict.fromkeys(RULES, predicted_classes(trace))
    kinds = {"attention", "gradient"}
    sites = iterate_sites(trace, trace.sites, kinds, seeds, RULES, release=True)
    (readings,) = next(sites)()
    assert readings.attention.shape == (3, 3, 17, 17)
    del readings
    next(sites)
    assert trace.sites[-1].weights.is_meta
    assert not hasattr(trace.sites[-1].product, "output")
    assert not trace.sites[0].weights.is_meta


def test_maps_that_were_not_kept_are_computed_again_some_queries_at_a_time():
    whole = record_case("timm-vit-fused")
    small = whole.rerecord(None, max_map_bytes=1)
    seeds = dict.fromkeys(RULES, torch.tensor([[0, 3]] * 3))
    kinds = {"attention", *RULES}
    expected = list(iterate_sites(whole, whole.sites, kinds, seeds, RULES, release=False))
    found = list(iterate_sites(small, small.sites, kinds, seeds, RULES, release=False))
    for ours, theirs in zip(found, expected, strict=True):
        (readings,), chunks = theirs(), list(ours())
        assert [chunk.first_query for chunk in chunks] == [0, 8, 16]  # half of 16 for two classes
        for kind in kinds:
            maps = torch.cat([getattr(chunk, kind) for chunk in chunks], -2)
            assert torch.allclose(maps, getattr(readings, kind), rtol=1e-9, atol=1e-14)
    assert all(isinstance(site.product, ChunkedAttention) for site in small.sites)
