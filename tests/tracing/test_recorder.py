"""Many ways to write one operation: the same numbers, the same gradients, the same relevance."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.attention_model import (
    HEADS,
    WIDTH,
    AttentionLayer,
    assert_same,
    make_inputs,
    read_everything,
)
from tests.zoo import HandWrittenViT
from whence import Explainer, NoRuleError, WhenceError, rules
from whence.rules import RuleSet
from whence.tracing import record
from whence.tracing.ops.guard import Guard


def baddbmm(q: Tensor, k: Tensor) -> Tensor:
    q, k = q.flatten(0, 1), k.flatten(0, 1)
    empty = torch.zeros(1, dtype=q.dtype).expand(len(q), q.shape[1], k.shape[1])
    return torch.baddbmm(empty, q, k.mT, beta=0, alpha=1).unflatten(0, (-1, HEADS))


def bmm(a: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(a.flatten(0, 1), v.flatten(0, 1)).unflatten(0, (-1, HEADS))


def add_in_place(x: Tensor, y: Tensor) -> Tensor:
    y += x
    return y


def addmm(x: Tensor, w: Tensor) -> Tensor:
    nothing = torch.zeros(len(w), dtype=w.dtype)
    return torch.addmm(nothing, x.flatten(0, -2), w.T).unflatten(0, x.shape[:-1])


SAME = {
    "einsum scores": {"scores": lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k)},
    "einsum with ellipsis": {"scores": lambda q, k: torch.einsum("...id, ...jd -> ...ij", q, k)},
    "einsum of a list": {"mix": lambda a, v: torch.einsum("bhij,bhjd->bhid", [a, v])},
    "baddbmm": {"scores": baddbmm},
    "bmm": {"mix": bmm},
    "operator": {"mix": lambda a, v: a @ v},
    "tensor method": {"mix": lambda a, v: a.matmul(v)},
    "values first": {"mix": lambda a, v: (v.mT @ a.mT).mT},
    "add operator": {"join": lambda x, y: x + y},
    "add in place": {"join": add_in_place},
    "add_": {"join": lambda x, y: y.add_(x)},
    "add_ on a view": {"join": lambda x, y: y.view_as(y).add_(x)},
    "linear as matmul": {"linear": lambda x, w: x @ w.T},
    "linear as einsum": {"linear": lambda x, w: torch.einsum("...i,oi->...o", x, w)},
    "linear as addmm": {"linear": addmm},
    "linear by keyword": {"linear": lambda x, w: F.linear(input=x, weight=w)},
    "dropout that is always on": {"after": lambda x: F.dropout(x, 0.0, training=True)},
    "chunks and cat": {"after": lambda x: torch.cat(x.chunk(2, -1), -1)},
    "constant added and taken away": {"after": lambda x: x + 1 - 1},
    "scaled and scaled back": {"after": lambda x: (2 * x) / 2},
    "negated twice": {"after": lambda x: (-x).neg()},
    "from a constant and back": {"after": lambda x: 1 - (1 - x)},
    "copied": {"after": lambda x: x.clone().contiguous()},
    "beside a constant written by keyword": {
        "after": lambda x: x + torch.nn.init.zeros_(tensor=torch.empty(1, dtype=x.dtype))
    },
}


@pytest.fixture(scope="module")
def expected():
    return read_everything(AttentionLayer())


@pytest.mark.parametrize("name", SAME)
def test_ways_to_write_one_operation_are_recorded_alike(name, expected):
    assert_same(read_everything(AttentionLayer(**SAME[name])), expected)


def test_difference_is_a_sum_with_the_second_term_negated():
    negated = AttentionLayer(join=lambda x, y: torch.add(x, y, alpha=-1))
    assert_same(read_everything(AttentionLayer(join=torch.sub)), read_everything(negated))
    swapped = AttentionLayer(join=lambda x, y: torch.rsub(y, x))
    assert_same(read_everything(swapped), read_everything(negated))


ACTIVATIONS = (
    torch.relu,
    torch.tanh,
    F.gelu,
    F.silu,
    F.elu,
    F.hardswish,
    F.mish,
    F.softplus,
    torch.sigmoid,
    lambda x: x.pow(3),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: F.relu(x, inplace=True),
    lambda x: x.relu_(),
    lambda x: torch.relu_(input=x),
    lambda x: x.clamp(-1, 1),
    lambda x: F.layer_norm(x, (WIDTH,)),
    lambda x: F.rms_norm(x, (WIDTH,)),
    lambda x: F.softmax(x, dim=1),
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_functions_pass_relevance_and_have_autograds_gradient(activation):
    model = AttentionLayer(after=activation)
    at_input = read_everything(model)[1]
    plain = make_inputs().requires_grad_()
    for target in range(3):
        (gradient,) = torch.autograd.grad(model(plain)[:, target].sum(), plain)
        assert torch.allclose(at_input[target], gradient)


def test_gates_share_relevance_between_their_factors():
    gated = AttentionLayer(after=lambda x: F.glu(torch.cat([x, x], -1)))
    by_hand = AttentionLayer(after=lambda x: x * (x[..., :] / 1).sigmoid())
    assert_same(read_everything(gated), read_everything(by_hand))
    some = {kind: rule for kind, rule in rules.get("stable").rules.items() if kind != "product"}
    with pytest.raises(NoRuleError, match=r"`mul`, called in AttentionLayer.forward"):
        read_everything(by_hand, RuleSet("some", some))


def test_in_place_writes_leave_what_operations_keep():
    def overwrite(x: Tensor) -> Tensor:
        y = torch.tanh(F.linear(x, torch.eye(WIDTH, dtype=x.dtype)))
        z = y * 1.5
        y.mul_(2)
        y[:, 1:] += 1
        return z + y

    def rebuild(x: Tensor) -> Tensor:
        y = torch.tanh(F.linear(x, torch.eye(WIDTH, dtype=x.dtype)))
        z = y * 1.5
        y = y * 2
        return z + torch.cat([y[:, :1], y[:, 1:] + 1], 1)

    ours, expected = AttentionLayer(after=overwrite), AttentionLayer(after=rebuild)
    assert_same(read_everything(ours), read_everything(expected))


# Values that a model looks at --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "value"),
    [
        (lambda x: x.sum().item(), 3.0),
        (lambda x: bool(x.sum()), True),
        (lambda x: int(x.sum()), 3),
        (lambda x: float(x.sum()), 3.0),
        (lambda x: [0, 1, 2, 3][x.sum().long()], 3),
        (lambda x: 1 if x.sum() > 2 else 0, 1),
    ],
)
def test_values_are_looked_at_through_the_guard(look, value):
    seen = []

    class Watching(Guard):
        def look_at(self, tensor):
            seen.append(super().look_at(tensor))
            return seen[-1]

    def branch(x: Tensor) -> Tensor:
        found = look(torch.ones(3))
        assert found == value
        assert type(found) is type(value)
        return x

    record(AttentionLayer(after=branch), (make_inputs()[:1],), {}, 0, guard=Watching())
    assert len(seen) == 1


def test_what_the_guard_says_decides_a_branch():
    class Contrary(Guard):
        def look_at(self, tensor):
            return not super().look_at(tensor)

    model = AttentionLayer(after=lambda x: x if x.isfinite().all() else x * 0)
    x = make_inputs()[:1]
    usual, other = (record(model, (x,), {}, 0, guard=g) for g in (None, Contrary()))
    assert not torch.allclose(usual.logits, other.logits)


# Token ids ---------------------------------------------------------------------------------------


LOOKUPS = {
    "embedding": F.embedding,
    "index": lambda ids, weight: weight[ids],
    "index of a copy": lambda ids, weight: weight[ids.clone()],
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_ids_are_followed_from_their_embeddings(lookup):
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.randn(50, 32))
            self.vit = HandWrittenViT()

        def forward(self, ids: Tensor) -> Tensor:
            x = LOOKUPS[lookup](ids, self.words)
            x += self.vit.positions[: ids.shape[1]]
            for block in self.vit.blocks:
                x = block(x)
            return self.vit.head(x[:, 0])

    ids = torch.randint(0, 50, (2, 7))
    trace = record(Text(), (ids,), {}, 0)
    assert [tuple(leaf.shape) for leaf in trace.leaves] == [(2, 7, 32)]
    assert Explainer(Text()).explain(ids).scores.shape == (2, 7)


def test_ids_that_cannot_be_followed_are_refused():
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = HandWrittenViT()
            self.words = nn.Parameter(torch.randn(50, 32))

        def forward(self, ids: Tensor) -> Tensor:
            x = F.one_hot(ids, 50).float() @ self.words
            for block in self.vit.blocks:
                x = block(x)
            return self.vit.head(x[:, 0])

    with pytest.raises(WhenceError, match=r"pass embeddings \(inputs_embeds\) instead of ids"):
        Explainer(OneHot()).explain(torch.randint(0, 50, (2, 7)))


class Experts(nn.Module):
    """Adds the outputs of experts for some tokens each, as mixtures of experts do."""

    def __init__(self, repeated: bool = False) -> None:
        super().__init__()
        self.layer = AttentionLayer()
        self.maps = nn.ModuleList(nn.Linear(8, 8).double() for _ in range(2))
        self.router = nn.Linear(8, 2).double()
        self.rows = [torch.tensor([0, 2]), torch.tensor([1, 2, 2] if repeated else [1, 2])]

    def forward(self, x):
        weights, _ = self.router(x).softmax(-1).topk(2)
        added = torch.zeros_like(x)
        for number, expert in enumerate(self.maps):
            rows = self.rows[number]
            added.index_add_(1, rows, expert(x[:, rows]) * weights[:, rows, number, None])
        return self.layer(x + added)


def test_outputs_of_experts_are_added():
    torch.manual_seed(0)
    model, x = Experts(), make_inputs()
    trace = record(model, (x,), {}, 0)
    assert len(trace.sites) == 1  # a router is no attention
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)
    classes = torch.zeros(len(x), 1, dtype=torch.long)
    assert torch.allclose(trace.read(classes, trace.leaves)[0][0], expected)
    (relevance,) = trace.read(classes, trace.leaves, rules.get("stable"))
    assert torch.allclose(relevance.sum((0, 2, 3)), torch.ones(len(x)).double())


def test_rows_that_are_added_several_times():
    """The same as a product with a matrix of ones and zeros, whose rows say what is added where."""

    class ByProduct(Experts):
        def forward(self, x):
            weights, _ = self.router(x).softmax(-1).topk(2)
            added = torch.zeros_like(x)
            for number, expert in enumerate(self.maps):
                rows = self.rows[number]
                where = F.one_hot(rows, x.shape[1]).to(x.dtype)
                source = expert(x[:, rows]) * weights[:, rows, number, None]
                added = added + (where[..., None] * source[:, :, None]).sum(1)
            return self.layer(x + added)

    torch.manual_seed(0)
    model = Experts(repeated=True)
    other = ByProduct(repeated=True)
    other.load_state_dict(model.state_dict())
    assert_same(read_everything(model), read_everything(other))


@pytest.mark.parametrize("over_tokens", [False, True])
def test_weights_of_features_are_no_attention(over_tokens):
    """A softmax over what a linear map puts out chooses features, and over rows it pools tokens."""

    class Weighs(AttentionLayer):
        def forward(self, x):
            scores = F.linear(x, self.head[:3])
            weights = scores.mT.softmax(-1) if over_tokens else scores.softmax(-1)
            pooled = (
                weights @ x if over_tokens else (weights[:, :, None] @ x[..., :3, None])[..., 0]
            )
            return super().forward(x + pooled.sum(1, keepdim=True))

    assert len(record(Weighs(), (make_inputs(),), {}, 0).sites) == 1 + over_tokens
