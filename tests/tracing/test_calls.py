"""Torch calls: names, registered operations, and einsum as a matrix product."""

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
from whence.tracing import calls, record


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.add, "add"),
        (Tensor.add, "add"),
        (Tensor.shape.__get__, "shape"),
        (Tensor.mT.__get__, "mT"),
        ("cumsum", "cumsum"),
        (torch.ops.aten.add.Tensor, "add"),
    ],
)
def test_names_by_which_calls_are_recognised(function, name):
    assert calls.name_of(function) == name


# Operations that users register ------------------------------------------------------------------


@pytest.fixture
def _registry(monkeypatch):
    monkeypatch.setattr(calls, "registered_kinds", dict(calls.registered_kinds))


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


@pytest.mark.usefixtures("_registry")
def test_what_cannot_be_registered_is_refused():
    with pytest.raises(WhenceError, match="int is neither a module class nor a function"):
        register_operation(int, "pass")


@pytest.mark.usefixtures("_registry")
def test_a_registered_module_must_return_one_tensor():
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    class Model(LayerWithModule):
        def after(self, x: Tensor) -> Tensor:
            return self.extra(x)[0]

    register_operation(Two, "pass")
    with pytest.raises(WhenceError, match=r"Two.forward is registered as one operation but"):
        read_everything(Model(Two()))


# Einsum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("...ij,...kj->...ik", [(2, 3, 4), (2, 5, 4)]),
        ("bhid,bhjd->bijh", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bij,k->bk", [(2, 3, 4), (5,)]),
        ("i,j->ji", [(3,), (4,)]),
        ("bi,bi->b", [(2, 3), (2, 3)]),
    ],
)
def test_an_einsum_of_two_operands_is_one_matrix_product(equation, shapes):
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    indices = calls.parse_einsum(equation, operands)
    assert indices is not None
    found = calls.einsum_as_matmul(*indices, *operands)
    assert torch.allclose(found, torch.einsum(equation, *operands))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("bi,bi->b", [(2, 3), (1, 3)]),
        ("i,i,i->i", [(3,)] * 3),
        ("ij->ji", [(3, 4)]),
    ],
)
def test_other_einsums_are_not_taken_apart(equation, shapes):
    assert calls.parse_einsum(equation, [torch.randn(shape) for shape in shapes]) is None
