"""The guard that looks at values."""

import torch

from whence.tracing.ops.guard import Guard


def test_values_are_looked_at():
    guard = Guard()
    assert guard.sees_values
    assert not guard.exact
    assert guard.look_at(torch.tensor(5)) == 5
    assert guard.look_at(torch.tensor(True)) is True


def test_on_a_cpu_a_shortcut_is_decided_at_once():
    guard = Guard()
    assert guard.shortcut_fails(torch.tensor(True))
    assert not guard.shortcut_fails(torch.tensor(False))
    assert guard.any_failure() is None


def test_shortcuts_that_were_taken_unseen_are_told_once_in_the_end():
    guard = Guard()
    for failure in (False, True, False):
        assert not guard.defer_shortcut(torch.tensor(failure))
    assert bool(guard.any_failure())
    assert guard.any_failure() is None
    guard.defer_shortcut(torch.tensor(False))
    assert not bool(guard.any_failure())
