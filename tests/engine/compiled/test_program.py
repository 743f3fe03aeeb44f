"""Programs: equal regions are compiled once, and run on other values."""

import threading

import pytest
import torch
from torch import nn

from tests.engine.compiled.blocks import Block
from whence.engine.compiled import program as compiling
from whence.engine.compiled.program import Program, answer, is_written_down, noted, written_down


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
    program = Program(blocks, [torch.randn(3, 6)])
    for _ in range(2):
        other = torch.randn(3, 6)
        assert torch.equal(program(other), blocks(other))
    assert compiled == [Block.OPERATORS]


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


def test_answers_are_assumed_and_checked():
    def compute(x):
        return (x * 2 if answer(x.sum() > 0) else x * 3), x

    x = torch.ones(3)
    with noted() as answers:
        compute(x)
    assert answers == [True]

    def checked(x):
        with written_down(answers) as right:
            assert is_written_down(x)
            return compute(x)[0], torch.stack(right).all()

    program = Program(checked, [x])
    found, right = program(x)
    assert torch.equal(found, x * 2)
    assert right
    _, right = program(-x)
    assert not right
    assert not is_written_down(x)


def test_what_was_not_noted_cannot_be_asked():
    with written_down([]), pytest.raises(RuntimeError, match="not noted"):
        answer(torch.tensor(1))
    assert not is_written_down(torch.tensor(1))


def test_numbers_are_answers_too():
    with noted() as answers:
        assert answer(torch.tensor(5)) == 5
    with written_down(answers) as right:
        assert answer(torch.tensor(7)) == 5
    assert [bool(one) for one in right] == [False]


def test_threads_write_by_themselves():
    seen = []
    with written_down([]):
        other = threading.Thread(target=lambda: seen.append(is_written_down(torch.ones(1))))
        other.start()
        other.join()
    assert seen == [False]
