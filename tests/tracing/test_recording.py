"""The recorded operations: overwritten tensors, calls that hide, interventions."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.attention_model import BATCH, AttentionLayer, make_inputs
from tests.tracing.helpers import read_maps
from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, NoRuleError, rules
from whence.tracing import Edit, Intervention, record
from whence.tracing.ops.guard import Guard

CLASSES = torch.zeros(BATCH, 1, dtype=torch.long)


def test_operations_are_recorded_in_their_order():
    guard = Guard()
    trace = record(AttentionLayer(), (make_inputs(),), {}, 0, guard=guard)
    operations = [entry.operation for entry in trace.entries]
    assert [operation.index for operation in operations] == list(range(len(operations)))
    assert all(operation.guard is guard for operation in operations)
    assert {operation.batch for operation in operations} == {BATCH}
    assert trace.kept_bytes == sum(operation.output.nbytes for operation in operations)
    norm = operations[0]
    assert (norm.name, norm.reader_count) == ("layer_norm", 3)
    softmax, product = trace.sites[0].product.a, trace.sites[0].product
    assert torch.equal(softmax, trace.attention()[0])
    assert product.in_attention
    assert product.a_is_attention_map


def test_nothing_can_be_recorded_after_the_forward_pass():
    trace = record(AttentionLayer(), (make_inputs(),), {}, 0)
    with pytest.raises(RuntimeError, match="The forward pass is over"):
        trace.active()


# Tensors that are overwritten --------------------------------------------------------------------


class Overwrites(HandWrittenViT):
    """Writes over its input, over a weight it has used, and into a constant."""

    def forward(self, image: Tensor) -> Tensor:
        image -= 0.5
        image.mul_(2)
        workspace = torch.eye(32)
        x = F.linear(image.flatten(2).unfold(2, 32, 32).flatten(1, 2)[:, :16], workspace)
        workspace.mul_(5)
        tokens = torch.zeros(len(image), 17, 32)
        tokens[:, 1:] = x
        part = tokens[:, 1:]
        part += 1
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


class WritesNothing(HandWrittenViT):
    """Computes the same out of place."""

    def forward(self, image: Tensor) -> Tensor:
        image = (image - 0.5) * 2
        x = F.linear(image.flatten(2).unfold(2, 32, 32).flatten(1, 2)[:, :16], torch.eye(32))
        tokens = torch.cat([torch.zeros(len(image), 1, 32), x + 1], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


def test_overwriting_changes_no_number():
    model, clean = Overwrites().eval(), WritesNothing().eval()
    clean.load_state_dict(model.state_dict())
    x = make_images(32, 32)
    before = x.clone()
    classes = torch.ones(3, 1, dtype=torch.long)
    ours, expected = record(model, (x,), {}, 0), record(clean, (x,), {}, 0)
    assert torch.equal(x, before)
    assert torch.allclose(ours.logits, expected.logits, atol=1e-6)
    for rule_set in (None, rules.get("stable")):
        a = ours.read(classes, ours.leaves, rule_set)[0]
        b = expected.read(classes, expected.leaves, rule_set)[0]
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


# Calls that relevance cannot pass ----------------------------------------------------------------


def test_an_unknown_operation_between_map_and_logits_is_named():
    model = nn.Sequential()
    model.add_module("body", AttentionLayer(after=lambda x: x.cumprod(1)))
    trace = record(model, (make_inputs(),), {}, 0)
    assert read_maps(trace, CLASSES)[0].abs().max() > 0
    message = r"`cumprod`, called in module 'body' \(AttentionLayer\).*'stable' has no rule"
    with pytest.raises(NoRuleError, match=message):
        read_maps(trace, CLASSES, rules.get("stable"))


def test_an_unknown_operation_elsewhere_does_no_harm():
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = AttentionLayer()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.cumprod(1))

    trace = record(Summed(), (make_inputs(),), {}, 0)
    assert read_maps(trace, CLASSES, rules.get("stable"))[0].abs().max() > 0


class Doubled(torch.autograd.Function):
    """An autograd function that a model brings along."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_an_autograd_function_of_the_model_refuses_relevance():
    trace = record(AttentionLayer(after=Doubled.apply), (make_inputs(),), {}, 0)
    plain = record(AttentionLayer(after=lambda x: 2 * x), (make_inputs(),), {}, 0)
    assert torch.allclose(read_maps(trace, CLASSES)[0], read_maps(plain, CLASSES)[0])
    with pytest.raises(NoRuleError, match=r"`Doubled`, called in a part of the model that hides"):
        read_maps(trace, CLASSES, rules.get("stable"))


@torch.jit.script
def scripted_matmul(x: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(x, w)


def test_calls_that_torchscript_hides_refuse_relevance():
    weight = torch.randn(5, 5)

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = HandWrittenViT()

        def forward(self, x: Tensor) -> Tensor:
            return scripted_matmul(self.inner(x), weight)

    with pytest.raises(NoRuleError, match="a part of the model that hides its calls"):
        Explainer(Scripted()).explain(make_images(32, 32), method="tiba")


# Interventions -----------------------------------------------------------------------------------


def test_other_inputs_take_the_place_of_the_models_own():
    model, x = AttentionLayer(), make_inputs()
    trace = record(model, (x,), {}, 0, None, Intervention(inputs=[(2 * x).requires_grad_() * 1]))
    assert torch.allclose(trace.logits, model(2 * x))


def test_rules_of_an_intervention_are_for_autograds_engine():
    model, x = AttentionLayer(), make_inputs()
    stable = rules.get("stable")
    plain = record(model, (x,), {}, 0)
    leaf = x.clone().requires_grad_()
    trace = record(model, (x,), {}, 0, None, Intervention(inputs=[leaf * 1], rules=stable))
    (found,) = torch.autograd.grad(trace.logits[:, 0].sum(), leaf)
    assert torch.allclose(found, plain.read(CLASSES, plain.leaves, stable)[0][0])


def test_unknown_calls_refuse_relevance_in_autograds_engine_too():
    model, x = AttentionLayer(after=lambda x: x.cumprod(1)), make_inputs()
    trace = record(model, (x,), {}, 0, None, Intervention(rules=rules.get("stable")))
    with pytest.raises(NoRuleError, match="`cumprod`"):
        torch.autograd.grad(trace.logits[:, 0].sum(), trace.leaves)
    plain = record(model, (x,), {}, 0, None, Intervention())
    assert torch.autograd.grad(plain.logits[:, 0].sum(), plain.leaves)[0].any()


def test_edits_change_inputs_and_outputs_of_single_operations():
    model, x = AttentionLayer(), make_inputs()
    plain = record(model, (x,), {}, 0)
    last = plain.rerecord(Intervention(finds_addresses=True)).addresses[-1]
    halved = Edit(output=lambda logits: logits / 2)
    of_zeros = Edit(inputs=lambda value: (value * 0,))
    for edit, expected in ((halved, plain.logits / 2), (of_zeros, plain.logits * 0)):
        trace = record(model, (x,), {}, 0, None, Intervention(edits={last: edit}))
        assert torch.allclose(trace.logits, expected)
        assert not torch.allclose(expected, plain.logits)


def test_a_run_that_only_goes_forward_keeps_nothing():
    trace = record(AttentionLayer(), (make_inputs(),), {}, 0, None, Intervention(forward_only=True))
    assert (trace.entries, trace.kept_bytes) == ([], 0)
    assert torch.allclose(trace.logits, AttentionLayer()(make_inputs()))
