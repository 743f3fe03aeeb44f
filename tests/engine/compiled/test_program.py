"""Programs: equal regions are compiled once, and run on other values."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn

from tests.engine.compiled.blocks import Block
from whence.engine.compiled import program as compiling
from whence.engine.compiled.program import CudaGraph, Program


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Regions run uncompiled; the number of operators of each that would be compiled."""
    lengths = []

    def keep(module, args):
        lengths.append(sum(node.op == "call_function" for node in module.graph.nodes))
        return module

    monkeypatch.setattr(compiling, "compile_graph", keep)
    return lengths


def test_equal_blocks_are_compiled_once(compiled):
    blocks = nn.Sequential(*(Block() for _ in range(7)))
    x = torch.randn(3, 6)
    program = Program(blocks, [x])
    assert torch.equal(program(-x), blocks(-x))
    assert compiled == []
    assert torch.equal(program.compile(x), blocks(x))
    assert torch.equal(program(-x), blocks(-x))
    assert compiled == [Block.OPERATORS]


def test_what_occurs_less_often_is_not_compiled_unless_nothing_else_is_there(compiled):
    x = torch.randn(3, 6)
    blocks = nn.Sequential(nn.Linear(6, 6), nn.GELU(), *(Block() for _ in range(7)), nn.Tanh())
    program = Program(blocks, [x])
    assert torch.equal(program.compile(x, fewest=2), blocks(x))
    assert compiled == [Block.OPERATORS]
    compiled.clear()
    Program(nn.Tanh(), [x]).compile(x, fewest=2)
    assert compiled == [1]


def test_what_never_repeats_and_is_long_is_not_compiled(compiled, monkeypatch):
    x = torch.randn(3, 6)
    program = Program(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Tanh()), [x])
    monkeypatch.setattr(compiling, "_MOST_OPERATORS", 3)
    with pytest.raises(RuntimeError, match="nothing repeats"):
        program.compile(x, fewest=2)
    assert compiled == []
    program.compile(x)  # a GPU's compiler gets all
    assert len(compiled) == 1


def test_a_program_can_run_as_recorded_again(monkeypatch):
    x, blocks = torch.randn(3, 6), nn.Sequential(*(Block() for _ in range(3)))
    monkeypatch.setattr(compiling, "compile_graph", lambda graph, _: lambda *x: graph(*x[::-1]))
    program = Program(blocks, [x])
    with contextlib.suppress(RuntimeError):
        program.compile(x)
    program.restore()
    assert torch.equal(program(x), blocks(x))


def test_weights_are_read_at_every_run():
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    x = torch.randn(3, 6)
    program = Program(blocks, [x])
    with torch.no_grad():
        blocks[1].weight.mul_(-2)
    assert torch.equal(program(x), blocks(x))


def test_one_value_may_be_returned_twice():
    def compute(x):
        y = x * 2
        return y, y, x

    x = torch.randn(3)
    assert all(map(torch.equal, Program(compute, [x])(-x), compute(-x)))


def test_progress_is_told_of_each_region():
    x, steps = torch.randn(3, 6), []
    program = Program(nn.Sequential(*(Block() for _ in range(4))), [x])
    program.compile(x, advance=steps.append)
    assert steps == [1] * program.split(x) == [1] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_cuda_graph_runs_on_other_values_and_reads_weights():
    layer, x = nn.Linear(4, 3).cuda(), torch.randn(2, 4, device="cuda")

    def compute(x):
        with torch.no_grad():
            return layer(x), x * 2

    graph = CudaGraph(compute, [x])
    first = graph(x)
    for ours, expected in zip(graph(-x), compute(-x), strict=True):
        assert torch.allclose(ours, expected)
    with torch.no_grad():
        layer.weight.mul_(-2)
    for ours, expected in zip(graph(x), compute(x), strict=True):
        assert torch.allclose(ours, expected)
    assert torch.equal(first[1], x * 2)  # results are the caller's own


class Recorded:
    """Stands for the part of torch that only a GPU has."""

    def replay(self) -> None: ...
    def wait_stream(self, _other: object) -> None: ...


@pytest.fixture
def streams(monkeypatch):
    """Parts of torch that only a GPU has are stood for; gives the streams that were set."""
    found = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "Stream", Recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the one before")
    monkeypatch.setattr(torch.cuda, "set_stream", found.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext())
    return found


def test_a_capture_that_fails_leaves_the_stream_as_it_was(streams):
    def fail(x):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        CudaGraph(fail, [torch.randn(3)], has_run=True)
    assert streams == ["the one before"]


def test_a_graph_of_an_eager_run_keeps_the_constants_that_it_reads(streams):
    weight = torch.randn(3)
    constants = {"weight": weight}
    graph = CudaGraph(lambda x: (x * constants["weight"],), [torch.ones(3)], has_run=True)
    expected = weight.clone()
    place = weight.data_ptr()
    del weight
    constants.clear()
    gc.collect()
    assert any(one.data_ptr() == place for one in graph._kept)
    assert torch.equal(next(one for one in graph._kept if one.data_ptr() == place), expected)


def test_a_graph_keeps_the_constants_that_it_reads(monkeypatch, streams):
    # A graph reads memory by its place. What a computation made itself is freed with it.
    monkeypatch.setattr(torch.cuda, "current_stream", Recorded)
    x = torch.randn(3, 6)
    program = Program(lambda x: (x[:, torch.tensor([4, 0])],), [x])
    (constant,) = map(weakref.ref, program._constants)
    graph = CudaGraph(program, [x])
    del program
    gc.collect()
    assert constant() is not None
    assert torch.equal(graph(x)[0], x[:, [4, 0]])
