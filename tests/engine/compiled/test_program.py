"""Computations that are written down, cut where they repeat, and run piece by piece."""

import threading

import pytest
import torch
from torch import nn

from whence.engine.compiled import program as compiling
from whence.engine.compiled.program import Program, answer, is_written_down, noted, written_down


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """Pieces run step by step; how long each different one is."""
    lengths = []

    def uncompiled(steps, args):
        lengths.append(sum(node.op == "call_function" for node in steps.graph.nodes))
        return steps

    monkeypatch.setattr(compiling, "_compiled", uncompiled)
    return lengths


class Layer(nn.Module):
    """A layer with enough steps to be a piece."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        for _ in range(8):
            kept.mul_(0.9).add_(torch.tanh(x))
            x = x @ self.weight / kept.abs().sum(-1, keepdim=True)
        return x


def test_what_repeats_is_one_piece(made):
    layers = nn.Sequential(*(Layer() for _ in range(7)))
    x = torch.randn(3, 6)
    program = Program(layers, [x])
    other = torch.randn(3, 6)
    assert torch.equal(program(other), layers(other))
    assert len(program._pieces) == 7
    assert all(piece.makes for piece in program._pieces)
    assert made == [8 * 7 + 1]  # one layer, and no other


def test_weights_are_read_when_it_runs():
    layers = nn.Sequential(*(Layer() for _ in range(3)))
    x = torch.randn(3, 6)
    program = Program(layers, [x])
    with torch.no_grad():
        layers[1].weight.mul_(-2)
    assert torch.equal(program(x), layers(x))


def test_what_is_written_in_place_is_seen_wherever_it_is_looked_at():
    def compute(x):
        x = x.clone()
        y = x[0]
        y.mul_(3)
        x.add_(1)
        return x * 2, y

    program = Program(compute, [torch.ones(2, 3)])
    x = torch.randn(2, 3)
    before = x.clone()
    assert all(map(torch.equal, program(x), compute(x)))
    assert torch.equal(x, before)


def test_what_is_written_in_place_may_have_lain_otherwise():
    def compute(x, y):
        x = x.clone().mul_(y)  # lies as x; out of place it may lie as y
        return x.view(-1) * 2

    x, y = torch.randn(3, 4), torch.randn(4, 3).T
    found = Program(compute, [x, y])(x, y)
    assert torch.equal(found, compute(x, y))


def test_the_way_back_is_written_down_too():
    def compute(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(leaf.pow(3).sum(), leaf)
        return {"gradient": gradient, "value": x}

    x = torch.randn(4)
    found = Program(compute, [torch.randn(4)])(x)
    assert torch.allclose(found["gradient"], 3 * x**2)
    assert found["value"] is x


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


def test_values_are_let_go_of_when_nobody_needs_them():
    layers = nn.Sequential(*(Layer() for _ in range(6)))
    program = Program(layers, [torch.randn(3, 6)])
    needed = {name for piece in program._pieces for name in piece.reads}
    gone = {name for piece in program._pieces for name in piece.last}
    made_here = {name for piece in program._pieces for name in piece.makes}
    assert (needed & made_here) - gone <= set(program._returned)
