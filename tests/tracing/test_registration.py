"""Operations that users register, and those that are known by the name of their class."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.attention_model import (
    BATCH,
    WIDTH,
    AttentionLayer,
    LayerWithModule,
    assert_same,
    make_inputs,
    read_everything,
)
from whence import NoRuleError, WhenceError, register_operation, rules
from whence.tracing import record, registration


@pytest.fixture
def _registry(monkeypatch):
    monkeypatch.setattr(registration, "registered_kinds", dict(registration.registered_kinds))


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


@pytest.mark.usefixtures("_registry")
def test_a_registered_module_is_one_operation():
    call_by_call = read_everything(LayerWithModule(OwnNorm()))
    register_operation(OwnNorm, "pass")
    ours = read_everything(LayerWithModule(OwnNorm()))
    fused = AttentionLayer(after=lambda x: F.layer_norm(x, (WIDTH,), eps=1e-6))
    assert_same(ours, read_everything(fused))
    assert not torch.allclose(call_by_call[-1], ours[-1])


def test_norms_and_activations_are_known_by_the_name_of_their_class():
    ours = read_everything(LayerWithModule(OwnRMSNorm()))
    fused = AttentionLayer(after=lambda x: 2 * F.rms_norm(x, (WIDTH,), eps=1e-6))
    assert_same(ours, read_everything(fused))


def test_an_activation_that_is_an_autograd_function_is_one_operation():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    ours = read_everything(LayerWithModule(bloom.BloomGelu()))
    fused = AttentionLayer(after=lambda x: F.gelu(x, approximate="tanh"))
    assert_same(ours, read_everything(fused))


def test_activations_of_transformers_are_one_operation():
    activations = pytest.importorskip("transformers.activations")
    ours = read_everything(LayerWithModule(activations.NewGELUActivation()))
    fused = AttentionLayer(after=lambda x: F.gelu(x, approximate="tanh"))
    assert_same(ours, read_everything(fused))


@pytest.mark.usefixtures("_registry")
def test_a_users_own_kind_has_the_users_own_rule():
    register_operation("cumsum", "running_sum")

    def rule(operation, relevance):
        (x,) = operation.inputs
        return x.detach() * operation.vjp(relevance / operation.output)[0]

    mine = rules.get("stable").extend("mine", running_sum=rule)
    trace = record(AttentionLayer(after=lambda x: x.cumsum(1)), (make_inputs(),), {}, 0)
    classes = torch.zeros(BATCH, 1, dtype=torch.long)
    (relevance,) = trace.read(classes, trace.leaves, mine)
    assert relevance.sum(dim=(0, 2, 3)) == pytest.approx(torch.ones(BATCH).tolist())
    with pytest.raises(NoRuleError, match=r"extend\('mine', running_sum=my_rule\)"):
        trace.read(classes, trace.leaves, rules.get("stable"))


class OwnSoftmax(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        exponentials = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
        return exponentials / exponentials.sum(-1, keepdim=True)


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("rule_set", ["stable", "balanced", "attnlrp"])
def test_a_registered_softmax_is_that_of_an_attention(rule_set):
    class Model(LayerWithModule):
        def forward(self, x: Tensor) -> Tensor:
            h = F.layer_norm(x, (WIDTH,))
            q, k, v = (self.split_heads(F.linear(h, w)) for w in (self.q, self.k, self.v))
            mixed = self.extra(q @ k.mT / 2) @ v
            return F.linear(
                (x + F.linear(mixed.transpose(1, 2).flatten(2), self.o))[:, 0], self.head
            )

    with pytest.raises(WhenceError, match="No attention was seen"):
        read_everything(Model(OwnSoftmax()), rule_set)
    register_operation(OwnSoftmax, "softmax")
    ours = read_everything(Model(OwnSoftmax()), rule_set)
    assert_same(ours, read_everything(AttentionLayer(), rule_set))


# Several outputs ---------------------------------------------------------------------------------


class Halves(nn.Module):
    """Returns two tensors, one that does not depend on the input, whole numbers and a word."""

    def forward(self, x: Tensor) -> dict:
        return {"both": (x.tanh(), x.sin()), "one": torch.ones(3), "at": x.argmax(-1), "is": "it"}


class ReadsHalves(LayerWithModule):
    def after(self, x: Tensor) -> Tensor:
        found = self.extra(x)
        assert found["is"] == "it"
        assert not found["one"].requires_grad
        assert found["at"].shape == x.shape[:-1]
        return found["both"][0] + 0.5 * found["both"][1]


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("rule_set", ["stable", "attnlrp", "reference"])
def test_each_tensor_that_a_module_returns_is_an_operation(rule_set):
    """The same as the two functions apart, which are known."""
    register_operation(Halves, "pass")
    apart = AttentionLayer(after=lambda x: x.tanh() + 0.5 * x.sin())
    ours = read_everything(ReadsHalves(Halves()), rules.get(rule_set))
    if rule_set == "attnlrp":  # which holds the gate of a tanh that it knows by name
        ours, expected = ours[:3], read_everything(apart)[:3]
    else:
        expected = read_everything(apart, rules.get(rule_set))
    assert_same(ours, expected)


@pytest.mark.usefixtures("_registry")
def test_a_function_with_several_outputs():
    register_operation("var_mean", "spread")
    model = AttentionLayer(after=lambda x: sum(torch.var_mean(x, -1, keepdim=True)) + x)
    shapes = []

    def share(operation, relevance):
        (x,) = operation.inputs
        shapes.append(tuple(operation.output.shape))
        return relevance.expand_as(x) / x.shape[-1]

    ours = read_everything(model, rules.get("stable").extend("mine", spread=share))
    assert set(shapes) == {(BATCH, 5, 1)}
    plain = make_inputs().requires_grad_()
    (gradient,) = torch.autograd.grad(model(plain)[:, 0].sum(), plain)
    assert torch.allclose(ours[1][0], gradient)


@pytest.mark.usefixtures("_registry")
def test_a_module_that_returns_nothing_of_its_input_is_refused():
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return torch.ones(len(x), 1, 1), "nothing"

    class Model(LayerWithModule):
        def after(self, x: Tensor) -> Tensor:
            return x * self.extra(x)[0]

    register_operation(Nothing, "pass")
    with pytest.raises(WhenceError, match=r"Nothing is .* no tensor depends on its input"):
        read_everything(Model(Nothing()))


# Wrong registrations -----------------------------------------------------------------------------


def hand_written(x: Tensor) -> Tensor:
    return x * 2


class OwnFunction(torch.autograd.Function):
    pass


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize(
    ("operation", "kind", "message"),
    [
        (int, "pass", "int is neither a module class nor a function"),
        (OwnFunction, "pass", "Call its apply in the forward of a module"),
        (OwnNorm(), "pass", "takes the class of a module and not a module: pass OwnNorm"),
        (hand_written, "pass", "Calls of hand_written cannot be seen.*torch.library.custom_op"),
        ("cumsun", "pass", "There is no torch function 'cumsun'. Near: .*cumsum"),
        (3, "pass", "a torch function or the name of one, not int"),
        ("cumsum", "linear", "the kind 'linear' are found by whence itself.*\"sum\" if it adds"),
        ("cumsum", "a kind", "A kind of operation is a name, not 'a kind'. Pass \"pass\""),
        ("cumsum", None, "A kind of operation is a name, not None"),
    ],
)
def test_errors_say_what_to_pass(operation, kind, message):
    with pytest.raises(WhenceError, match=message):
        register_operation(operation, kind)
    assert operation is OwnNorm or not registration.registered_kinds


@pytest.mark.usefixtures("_registry")
def test_more_tensors_than_the_kind_takes():
    class Join(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y.square()

    class Model(LayerWithModule):
        def after(self, x: Tensor) -> Tensor:
            return self.extra(x, y=x.sin())

    register_operation(Join, "pass")
    with pytest.raises(WhenceError, match=r"Join is registered as 'pass'.*here are 2.*'product'"):
        read_everything(Model(Join()))


@pytest.mark.usefixtures("_registry")
def test_relevance_cannot_pass_unchanged_to_another_shape():
    register_operation("cumprod", "pass")
    register_operation("kron", "pass")
    read_everything(AttentionLayer(after=lambda x: x.cumprod(1)))
    with pytest.raises(WhenceError, match=r"kron is registered as 'pass', but makes \(2, 5, 16\)"):
        read_everything(
            AttentionLayer(after=lambda x: torch.kron(x, torch.ones(1, 1, 2).to(x))[..., :WIDTH])
        )


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("how", ["operator", "packet", "name"])
def test_custom_operators(how):
    library = torch.library.Library("whence_test", "FRAGMENT")
    try:

        @torch.library.custom_op("whence_test::twice", mutates_args=())
        def twice(x: Tensor) -> Tensor:
            return 2 * x.detach().clone()

        twice.register_autograd(lambda ctx, g: 2 * g)
        given = {
            "operator": twice,
            "packet": torch.ops.whence_test.twice,
            "name": "whence_test::twice",
        }
        register_operation(given[how], "pass")
        assert registration.registered_kinds == {"twice": "pass"}
        assert_same(
            read_everything(AttentionLayer(after=twice)),
            read_everything(AttentionLayer(after=lambda x: 2 * x)),
        )
    finally:
        library._destroy()
