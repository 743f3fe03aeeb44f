"""Guards of compiled programs: values that are noted, assumed and checked."""

import pytest
import torch

from whence.engine.compiled.guards import (
    AssumingGuard,
    NotingGuard,
    RefuseConversions,
    all_hold,
)
from whence.engine.compiled.program import Program


def test_assumed_values_are_checked_at_every_run(monkeypatch):
    def compute(x, guard):
        return x * 2 if guard.look_at(x.sum() > 0) else x * 3

    def compute_checked(x):
        guard = AssumingGuard(noting.noted)
        return compute(x, guard), all_hold(guard.conditions)

    monkeypatch.setattr("whence.engine.compiled.program.compile_graph", lambda graph, _: graph)
    x, noting = torch.ones(3), NotingGuard()
    compute(x, noting)
    assert noting.noted == [True]
    program = Program(compute_checked, [x])
    output, holds = program(x)
    assert torch.equal(output, x * 2)
    assert holds
    _, holds = program(-x)
    assert not holds


def test_numbers_are_assumed_too():
    noting = NotingGuard()
    assert noting.look_at(torch.tensor(5)) == 5
    assuming = AssumingGuard(noting.noted)
    assert assuming.look_at(torch.tensor(7)) == 5
    assert not all_hold(assuming.conditions)
    assert noting.noted == [5]


def test_a_value_that_was_not_noted_cannot_be_assumed():
    with pytest.raises(RuntimeError, match="not looked at before"):
        AssumingGuard([]).look_at(torch.tensor(1))


@pytest.mark.parametrize("guard", [NotingGuard(), AssumingGuard([])], ids=["noting", "assuming"])
def test_shortcuts_are_taken_and_their_failure_is_told_in_the_end(guard):
    assert guard.any_failure() is None
    assert not guard.shortcut_fails(torch.tensor(False))
    assert not guard.shortcut_fails(torch.tensor(True))
    assert guard.any_failure()


@pytest.mark.parametrize("convert", [torch.Tensor.tolist, torch.Tensor.numpy, repr])
def test_conversions_are_refused(convert):
    x = torch.ones(2)
    with RefuseConversions(), pytest.raises(RuntimeError, match="depends on values"):
        convert(x)
