"""The gamma rule at skip connections, against the formula written element by element."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import record_case, record_inputs
from tests.tracing.ops.helpers import double
from whence import rules
from whence.rules.attnlrp import ATTNLRP
from whence.rules.residual import make_reslrp
from whence.tracing import Trace
from whence.tracing.graph.skips import mark_skips
from whence.tracing.ops.sums import Add, SkipAddition, SkipSum

WIDTH, TOKENS = 4, 3
TARGETS = torch.ones(2, 1, dtype=torch.long)


def share_plainly(terms: list[float], relevance: float, gamma: float) -> list[float]:
    """R_i = w_i z_i / sum_j w_j z_j R, with w = 1 + gamma where signs agree, else 1."""
    total = sum(terms)
    weights = [1 + gamma if z * total >= 0 else 1 for z in terms]
    weighed = [w * z for w, z in zip(weights, terms, strict=True)]
    return [one / sum(weighed) * relevance for one in weighed]


class Branches(nn.Module):
    """A sum of a tensor, an attention and two MLPs, added up in one of several ways."""

    def __init__(self, add) -> None:
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.head, self.add = nn.Linear(WIDTH, 3), add

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(x @ x.mT, -1)
        a = torch.tanh(self.maps[0](weights @ x))
        b, c = (torch.tanh(one(x)) for one in self.maps[1:])
        return self.head(self.add(x, a, b, c)[:, 0])


def add_in_place(x: Tensor, *branches: Tensor) -> Tensor:
    total = branches[0] * 1
    for branch in branches[1:]:
        total += branch
    return total + x


# How summands are added up; with which factors; and which of the branches make one term.
APART = [[0], [1, 2]]
SUMS = {
    "one branch": (lambda x, a, b, c: x + b, (0, 1, 0), [[1]]),
    "a difference": (lambda x, a, b, c: x - a, (-1, 0, 0), [[0]]),
    "a scaled branch": (lambda x, a, b, c: x + 0.5 * a, (0.5, 0, 0), [[0]]),
    "in a row": (lambda x, a, b, c: x + b + a + c, (1, 1, 1), APART),
    "branches first": (lambda x, a, b, c: x + (b + (a + c)), (1, 1, 1), APART),
    "a tree": (lambda x, a, b, c: (x + a) + (b - c), (1, 1, -1), APART),
    "less a sum": (lambda x, a, b, c: x - (b + c), (0, -1, -1), [[1, 2]]),
    "in place": (add_in_place, (1, 1, 1), APART),
    "a stack": (lambda x, a, b, c: torch.stack([b, x, c, a], 1).sum(1), (1, 1, 1), APART),
    "branches in a stack": (lambda x, *other: x + torch.stack(other, 1).sum(1), (1, 1, 1), APART),
}


def find_sums(trace: Trace) -> list[int]:
    """The numbers of the operations that complete a skip connection."""
    mark_skips(trace)
    skips = [entry.operation.skip for entry in trace.entries]
    return [number for number, skip in enumerate(skips) if skip is not None and skip.is_last]


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("name", SUMS)
def test_shares_are_those_of_the_formula(name, gamma):
    add, factors, groups = SUMS[name]
    model, x = Branches(add).double(), double(2, TOKENS, WIDTH)
    trace = record_inputs(model, x)
    (last,) = find_sums(trace)
    branches = [entry for entry in trace.entries if entry.operation.name == "tanh"]
    places = [trace.entries[last].output, *(entry.output for entry in branches)]
    of_sum, *of_branches = (v[0] for v in trace.read(TARGETS, places, make_reslrp(gamma)))
    values = [entry.operation.output for entry in branches]
    for place in itertools.product(*map(range, x.shape)):
        parts = [factor * float(z[place]) for factor, z in zip(factors, values, strict=True)]
        terms = [float(x[place]), *(sum(parts[n] for n in group) for group in groups)]
        shares = share_plainly(terms, sum(terms) * float(of_sum[place]), gamma)
        for group, term, share in zip(groups, terms[1:], shares[1:], strict=True):
            for n in group:  # a summand has its part of what its term gets
                found = float(values[n][place] * of_branches[n][place])
                assert found == pytest.approx(parts[n] / term * share, rel=1e-10, abs=1e-13)


def test_without_gamma_it_is_attnlrp_to_the_bit():
    trace = record_case("hand-written")
    targets = torch.zeros(trace.batch, 1, dtype=torch.long)
    (ours,), (theirs,) = (
        trace.read(targets, trace.leaves, one) for one in (make_reslrp(0.0), ATTNLRP)
    )
    assert torch.equal(ours, theirs)


def test_zero_terms():
    # All terms zero: gradients pass as they are. A sum of zero that is not of zeros passes nothing.
    add = Add()
    add.forward(*torch.tensor([[0.0, 2.0, 2.0, 0.0], [0.0, -2.0, 0.0, -3.0]]))
    add.skip = SkipAddition((0, 1), is_last=True, shared=SkipSum(2))
    to_a, to_b = make_reslrp(1.0).propagate(add, torch.ones(4))
    for shares in (to_a, to_b):
        assert shares.tolist() == pytest.approx([1, 0, 1, 1], abs=1e-30)


@pytest.mark.parametrize("rule_set", ["residual", "reslrp"])
@pytest.mark.parametrize("name", ["a tree", "a stack", "branches in a stack"])
def test_several_classes_at_once_are_as_one_by_one(rule_set, name):
    trace = record_inputs(Branches(SUMS[name][0]).double(), double(2, TOKENS, WIDTH))
    chosen = rules.get(rule_set)
    (together,) = trace.read(torch.tensor([[0, 2], [1, 0]]), trace.leaves, chosen)
    for column in range(2):
        one = torch.tensor([[0, 2], [1, 0]])[:, column, None]
        assert torch.allclose(together[column], trace.read(one, trace.leaves, chosen)[0][0])


@pytest.mark.parametrize("name", ["one branch", "a tree", "a stack"])
def test_relevance_is_conserved_without_biases(name):
    model = Branches(SUMS[name][0]).double()
    for one in (*model.maps, model.head):
        nn.init.zeros_(one.bias)
    x = double(2, TOKENS, WIDTH)
    trace = record_inputs(model, x)
    # Not of AttnLRP, whose expansion of the softmax keeps a share to itself.
    (found,) = trace.read(TARGETS, trace.leaves, rules.get("residual"))
    assert torch.allclose((x * found[0]).flatten(1).sum(1), trace.logits[:, 1], rtol=1e-10)
