"""Many spellings, one operation: the same numbers, the same gradients, the same relevance."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence import NoRuleError, WhenceError, register_operation, rules
from whence.tracing import calls as spelling
from whence.tracing import record

WIDTH, HEADS, TOKENS, BATCH = 8, 2, 5, 2


class Attention(nn.Module):
    """One attention layer whose parts can be spelled differently; classes are read from token 0."""

    def __init__(self, **parts) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        weights = torch.randn(5, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        self.q, self.k, self.v, self.o, self.head = (nn.Parameter(w) for w in weights)
        self.parts = parts

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.parts.get("scores", lambda q, k: q @ k.mT)(q, k)

    def mix(self, a: Tensor, v: Tensor) -> Tensor:
        return self.parts.get("mix", torch.matmul)(a, v)

    def after(self, x: Tensor) -> Tensor:
        return self.parts.get("after", lambda x: x)(x)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return self.parts.get("join", torch.add)(x, y)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.parts.get("linear", F.linear)(x, weight)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm(x, (WIDTH,))
        q, k, v = (self.heads(self.linear(h, w)) for w in (self.q, self.k, self.v))
        a = (self.scores(q, k) / 2).softmax(-1)
        y = self.mix(a, v).transpose(1, 2).flatten(2)
        x = self.join(x, self.after(self.linear(y, self.o)))
        return self.linear(x[:, 0], self.head)


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(BATCH, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def readings(model: nn.Module, rule_set: str = "stable") -> list[Tensor]:
    """Logits, gradient and relevance at the map and at the input, for all classes."""
    x = inputs()
    with torch.no_grad():
        plain = model(x.clone())
    traced = record(model, (x,), {}, 0)
    assert torch.allclose(traced.logits, plain)
    classes = torch.arange(3).expand(BATCH, 3)
    result = [traced.logits.detach()]
    for rules_read in (None, rules.get(rule_set)):
        at_map, at_input = traced.read(
            classes, [traced.sites[0].weights, *traced.inputs], rules_read
        )
        result += [at_input, traced.sites[0].split_heads(at_map, BATCH)]
    return result


def assert_same(ours: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(ours, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-10)


def baddbmm(q: Tensor, k: Tensor) -> Tensor:
    q, k = q.flatten(0, 1), k.flatten(0, 1)
    empty = torch.zeros(1, dtype=q.dtype).expand(len(q), q.shape[1], k.shape[1])
    return torch.baddbmm(empty, q, k.mT, beta=0, alpha=1).unflatten(0, (-1, HEADS))


def bmm(a: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(a.flatten(0, 1), v.flatten(0, 1)).unflatten(0, (-1, HEADS))


def in_place_add(x: Tensor, y: Tensor) -> Tensor:
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
    "add in place": {"join": in_place_add},
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
}


@pytest.fixture(scope="module")
def expected():
    return readings(Attention())


@pytest.mark.parametrize("name", SAME)
def test_spellings_of_the_same(name, expected):
    assert_same(readings(Attention(**SAME[name])), expected)


def test_difference_is_a_sum_with_the_second_term_negated():
    negated = Attention(join=lambda x, y: torch.add(x, y, alpha=-1))
    assert_same(readings(Attention(join=torch.sub)), readings(negated))
    swapped = Attention(join=lambda x, y: torch.rsub(y, x))
    assert_same(readings(swapped), readings(negated))


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
    lambda x: x.clamp(-1, 1),
    lambda x: F.layer_norm(x, (WIDTH,)),
    lambda x: F.rms_norm(x, (WIDTH,)),
    lambda x: F.softmax(x, dim=1),
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_functions_pass_relevance_and_differentiate_as_ever(activation):
    model = Attention(after=activation)
    at_input = readings(model)[1]
    plain = inputs().requires_grad_()
    for target in range(3):
        (gradient,) = torch.autograd.grad(model(plain)[:, target].sum(), plain)
        assert torch.allclose(at_input[target], gradient)


def test_gates_share_relevance_between_their_factors():
    gated = Attention(after=lambda x: F.glu(torch.cat([x, x], -1)))
    by_hand = Attention(after=lambda x: x * x.sigmoid())
    assert_same(readings(gated), readings(by_hand))
    with pytest.raises(NoRuleError, match=r"`mul`, called in Attention.forward"):
        readings(by_hand, "reference")


def test_in_place_writes_do_not_disturb_what_was_kept():
    """Overwriting a tensor that operations had kept gives what an untouched copy gives."""

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

    assert_same(readings(Attention(after=overwrite)), readings(Attention(after=rebuild)))


# Unknown is an error -----------------------------------------------------------------------------


def test_an_unknown_operation_on_the_relevance_path_is_named():
    model = nn.Sequential()
    model.add_module("body", Attention(after=lambda x: x.cumsum(1)))
    traced = record(model, (inputs(),), {}, 0)
    classes = torch.zeros(BATCH, 1, dtype=torch.long)
    assert traced.gradient(classes)[0].abs().max() > 0
    message = r"`cumsum`, called in module 'body' \(Attention\).*'stable' has no rule"
    with pytest.raises(NoRuleError, match=message):
        traced.relevance(classes, rules.get("stable"))


def test_an_unknown_operation_elsewhere_does_no_harm():
    class Below(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Attention()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.cumsum(1))

    traced = record(Below(), (inputs(),), {}, 0)
    relevance = traced.relevance(torch.zeros(BATCH, 1, dtype=torch.long), rules.get("stable"))
    assert relevance[0].abs().max() > 0


def test_an_autograd_function_of_the_model_is_not_passed_in_silence():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    traced = record(Attention(after=Doubled.apply), (inputs(),), {}, 0)
    classes = torch.zeros(BATCH, 1, dtype=torch.long)
    (gradient,) = traced.gradient(classes)
    plain = record(Attention(after=lambda x: 2 * x), (inputs(),), {}, 0).gradient(classes)[0]
    assert torch.allclose(gradient, plain)
    with pytest.raises(NoRuleError, match=r"`Doubled`, called in a part of the model that hides"):
        traced.relevance(classes, rules.get("stable"))


# What users register -----------------------------------------------------------------------------


@pytest.fixture
def _registry(monkeypatch):
    monkeypatch.setattr(spelling, "_registered", dict(spelling._registered))


class OwnNorm(nn.Module):
    """A norm in several calls, under a name that says nothing."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


class OwnRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64) * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class WithModule(Attention):
    def __init__(self, extra: nn.Module) -> None:
        super().__init__()
        self.extra = extra

    def after(self, x: Tensor) -> Tensor:
        return self.extra(x)


@pytest.mark.usefixtures("_registry")
def test_a_registered_module_is_one_operation():
    seen_call_by_call = readings(WithModule(OwnNorm()))
    register_operation(OwnNorm, "pass")
    ours = readings(WithModule(OwnNorm()))
    whole = readings(Attention(after=lambda x: F.layer_norm(x, (WIDTH,), eps=1e-6)))
    assert_same(ours, whole)
    assert not torch.allclose(seen_call_by_call[-1], ours[-1])


def test_norms_and_activations_written_out_are_known_by_their_name():
    ours = readings(WithModule(OwnRMSNorm()))
    assert_same(ours, readings(Attention(after=lambda x: 2 * F.rms_norm(x, (WIDTH,), eps=1e-6))))


def test_activations_of_transformers_are_one_operation():
    activations = pytest.importorskip("transformers.activations")
    ours = readings(WithModule(activations.NewGELUActivation()))
    assert_same(ours, readings(Attention(after=lambda x: F.gelu(x, approximate="tanh"))))


@pytest.mark.usefixtures("_registry")
def test_a_users_own_kind_has_the_users_own_rule():
    register_operation("cumsum", "running_sum")

    def rule(operation, relevance):
        (x,) = operation.inputs
        return x.detach() * operation.vjp(relevance / operation.output)[0]

    mine = rules.get("stable").extend("mine", running_sum=rule)
    traced = record(Attention(after=lambda x: x.cumsum(1)), (inputs(),), {}, 0)
    classes = torch.zeros(BATCH, 1, dtype=torch.long)
    (relevance,) = traced.read(classes, traced.inputs, mine)
    assert relevance.sum(dim=(0, 2, 3)) == pytest.approx(torch.ones(BATCH).tolist())
    with pytest.raises(NoRuleError, match=r"extended\('mine', running_sum=my_rule\)"):
        traced.read(classes, traced.inputs, rules.get("stable"))


@pytest.mark.usefixtures("_registry")
def test_what_cannot_be_registered_says_so():
    with pytest.raises(WhenceError, match="int is neither a module class nor a function"):
        register_operation(int, "pass")


@pytest.mark.usefixtures("_registry")
def test_a_registered_module_must_return_one_tensor():
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    class Model(WithModule):
        def after(self, x: Tensor) -> Tensor:
            return self.extra(x)[0]

    register_operation(Two, "pass")
    with pytest.raises(WhenceError, match=r"Two.forward is registered as one operation but"):
        readings(Model(Two()))
