"""Recording a stand-in of a model: whatever surrounds the call, the model is left alone."""

import functools
import types

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, WhenceError
from whence.errors import TooLargeError
from whence.tracing import find_logits, record


@pytest.fixture
def model() -> nn.Module:
    return HandWrittenViT().eval()


def explain(model: nn.Module, **options) -> Tensor:
    """Scores by a method that reads gradients and relevance."""
    return Explainer(model).explain(make_images(32, 32), method="tiba", **options).scores


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


# Surroundings ------------------------------------------------------------------------------------


def test_inside_no_grad_and_inference_mode(model):
    expected = explain(model)
    with torch.no_grad():
        assert torch.equal(explain(model), expected)
    with torch.inference_mode():
        assert torch.equal(explain(model), expected)
        assert torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_autocast_is_set_aside(model):
    expected = explain(model)

    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x)

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(explain(model), expected)
    assert torch.allclose(explain(Casting()), expected)


def test_a_model_that_switches_gradients_off_is_followed_all_the_same(model):
    expected = explain(model)

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    assert torch.equal(explain(Frozen()), expected)


def test_what_a_model_holds_constant_is_constant():
    class Stops(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            with torch.no_grad():
                brightness = image.mean((1, 2, 3))
            return super().forward(image) * brightness[:, None]

    model, x = Stops(), make_images(32, 32)
    trace = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(plain)[:, 0].sum(), plain)
    ours = trace.read(torch.zeros(3, 1, dtype=torch.long), trace.leaves)[0][0]
    assert torch.allclose(ours, gradient, atol=1e-6)


def test_a_model_that_is_compiled_or_in_data_parallel(model):
    expected = explain(model)
    assert torch.equal(explain(torch.compile(model)), expected)
    assert torch.equal(explain(nn.DataParallel(model)), expected)
    model.compile()
    assert torch.equal(explain(model), expected)


def test_parametrized_weights(model):
    nn.utils.parametrizations.weight_norm(model.head)
    expected = explain(model)
    nn.utils.parametrize.remove_parametrizations(model.head, "weight")
    assert torch.allclose(explain(model), expected)


def test_float64(model):
    single = explain(model)
    double = Explainer(model.double()).explain(make_images(32, 32).double(), method="tiba").scores
    assert double.dtype == torch.float64
    assert torch.allclose(single.double(), double, rtol=1e-3)


def test_bfloat16_is_explained(model):
    result = Explainer(model.bfloat16()).explain(make_images(32, 32).bfloat16(), method="tiba")
    assert result.scores.isfinite().all()


def test_gradient_checkpointing_of_transformers_is_switched_off():
    case = CASES["Bert-sdpa"]
    model, inputs = build_model(case), case.inputs()
    expected = Explainer(model).explain(inputs, method="tiba").scores
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    for training in (False, True):
        model.train(training)
        assert torch.equal(Explainer(model).explain(inputs, method="tiba").scores, expected)
        assert model.is_gradient_checkpointing
        assert model.training == training


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_that_a_model_always_makes_are_refused(model, reentrant):
    blocks = model.blocks
    model.blocks = nn.Sequential(Checkpointed(blocks[0], reentrant), *blocks[1:])
    with pytest.raises(WhenceError, match="Switch gradient checkpointing off"):
        explain(model)


def test_hooks_on_saved_tensors_around_the_call(model):
    expected = explain(model)
    with torch.autograd.graph.save_on_cpu():
        assert torch.equal(explain(model), expected)


def test_gradient_checkpointing_is_switched_off():
    case = CASES["timm-vit-fused"]
    model = build_model(case)
    expected = Explainer(model).explain(case.inputs(), method="tiba").scores
    model.set_grad_checkpointing(True)
    found = Explainer(model).explain(case.inputs(), method="tiba").scores
    assert torch.equal(found, expected)
    assert model.grad_checkpointing


# Logits ------------------------------------------------------------------------------------------


def test_what_output_computes_is_recorded_too(model):
    weight = torch.randn(5, 5)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) @ weight

    expected = explain(Whole())
    outside = Explainer(model, output=lambda logits: logits @ weight)
    assert torch.equal(outside.explain(make_images(32, 32), method="tiba").scores, expected)


def test_logits_are_found_in_what_a_model_returns():
    logits = torch.zeros(2, 3)
    returned = (logits, {"logits": logits}, [logits, 1], types.SimpleNamespace(logits=logits))
    assert all(find_logits(one) is logits for one in returned)
    for other in ({"scores": logits}, [], "logits", [1, logits]):
        with pytest.raises(WhenceError, match="finds no logits"):
            find_logits(other)


def test_a_forward_pass_that_keeps_too_much_is_given_up(model):
    trace = record(model, (make_images(32, 32),), {}, 0)
    record(model, (make_images(32, 32),), {}, 0, max_bytes=trace.kept_bytes)
    with pytest.raises(TooLargeError):
        record(model, (make_images(32, 32),), {}, 0, max_bytes=trace.kept_bytes - 1)


# Weights that are not there ----------------------------------------------------------------------


def test_weights_on_meta_are_refused(model):
    with pytest.raises(WhenceError, match="are on the meta device: offloaded, or never loaded"):
        explain(model.to("meta"))


def test_one_weight_on_meta_is_named(model):
    model.blocks[0].to("meta")
    with pytest.raises(WhenceError, match=r"\('blocks\.0\..*' is one\) are on the meta device"):
        explain(model)


def test_weights_that_a_hook_loads_when_they_are_needed(model):
    """As accelerate does it: a forward set on the instance that fills the module's parameters."""
    expected = explain(model)
    block = model.blocks[0]
    weights = {name: value.detach().clone() for name, value in block.named_parameters()}
    plain = block.forward

    def forward(module: nn.Module, *args: Tensor) -> Tensor:
        for name, value in weights.items():
            owner, _, key = name.rpartition(".")
            module.get_submodule(owner)._parameters[key] = nn.Parameter(value)
        return module._old_forward(*args)

    block._old_forward = plain
    block.forward = functools.update_wrapper(functools.partial(forward, block), plain)
    block.to("meta")
    assert torch.equal(explain(model), expected)
    assert all(parameter.is_meta for parameter in block.parameters())
