"""Targets of both signs: apart only where rules scale by sums."""

import torch

from whence import rules
from whence.tracing.ops.guard import Guard
from whence.tracing.signs import join_signs, split_signs


def test_signs_are_split_for_rules_that_scale_by_sums():
    seeds = torch.tensor([[[1.0, 0.0, -0.5]]])
    sets = [None, rules.get("stable"), rules.get("reference")]
    parts = list(split_signs([seeds] * 3, sets, Guard()))
    assert [part.rules for part in parts] == [None, sets[1], sets[2], sets[2]]
    assert parts[2].seeds.tolist() == [[[1.0, 0.0, 0.0]]]
    assert parts[3].seeds.tolist() == [[[0.0, 0.0, 0.5]]]
    joined = join_signs(parts, [part.seeds for part in parts])
    assert all(torch.equal(one, seeds) for one in joined)


def test_one_sign_stays_one_part():
    seeds = torch.tensor([[[1.0, 0.0]]])
    (part,) = split_signs([seeds], [rules.get("paper")], Guard())
    assert part.seeds is seeds
    assert not part.is_subtracted
