"""Recording a stand-in of a model: whatever surrounds the call, the model is left alone."""

import functools
import types

import pytest
import torch
from torch import Tensor, nn

from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, WhenceError
from whence.errors import TooLargeError
from whence.tracing import find_logits, record, replicate, unwrap_model


@pytest.fixture
def model() -> nn.Module:
    return HandWrittenViT().eval()


def explain(model: nn.Module, **options) -> Tensor:
    """Scores by a method that reads gradients and relevance."""
    return Explainer(model).explain(make_images(32, 32), method="tiba", **options).scores


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


def test_bfloat16_is_explained_with_a_warning(model):
    with pytest.warns(UserWarning, match="bfloat16 is too coarse"):
        result = Explainer(model.bfloat16()).explain(make_images(32, 32).bfloat16(), method="tiba")
    assert result.scores.isfinite().all()


def test_gradient_checkpointing_is_switched_off():
    case = CASES["timm-vit-fused"]
    model = build_model(case)
    expected = Explainer(model).explain(case.inputs(), method="tiba").scores
    model.set_grad_checkpointing(True)
    found = Explainer(model).explain(case.inputs(), method="tiba").scores
    assert torch.equal(found, expected)
    assert model.grad_checkpointing


# The stand-in ------------------------------------------------------------------------------------


class Remembers(HandWrittenViT):
    """Keeps modules, caches and bound methods where a module tree does not show them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = [nn.BatchNorm1d(32)]
        self.seen: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.register_buffer("count", torch.zeros(()))
        self.hidden = self.remember
        self.partial = functools.partial(self.remember)

    def remember(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.cache["last"] = x
        self.count += 1
        return self.norms[0](x.flatten(0, 1)).view_as(x)

    def forward(self, image: Tensor) -> Tensor:
        pixels = self.partial(self.hidden(image.flatten(2).unfold(2, 32, 32).flatten(1, 2)))
        return super().forward(image) + pixels.mean((1, 2))[:, None]


def test_nothing_that_a_model_holds_is_touched():
    model = Remembers().train()
    explain(model)
    norm = model.norms[0]
    assert norm.num_batches_tracked == 0
    assert norm.training
    assert (model.seen, model.cache, model.count) == ([], {}, 0)


def test_a_forward_set_on_the_instance_runs_on_the_stand_in(model):
    expected = explain(model)
    block = model.blocks[0]
    modes = []

    def forward(self, x: Tensor) -> Tensor:
        modes.append((self.training, self is block))
        return HandWrittenBlock_forward(self, x)

    HandWrittenBlock_forward = type(block).forward
    block.forward = types.MethodType(forward, block)
    model.train()
    assert torch.equal(explain(model), expected)
    assert modes == [(False, False)]


def test_the_users_hooks_run(model):
    model.blocks[0].register_forward_hook(lambda _m, _a, output: output * 2)
    model.blocks[1].register_full_backward_hook(lambda *_: None)
    result = Explainer(model).explain(make_images(32, 32))
    with torch.no_grad():
        assert torch.allclose(result.logits, model(make_images(32, 32)), atol=1e-5)


def test_buffers_written_in_place_stay():
    class Counts(HandWrittenViT):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(3))

        def forward(self, image: Tensor) -> Tensor:
            self.steps.add_(1)
            self.steps[0] = 7
            return super().forward(image)

    model = Counts()
    explain(model)
    assert torch.equal(model.steps, torch.zeros(3))


def test_a_stand_in_shares_parameters_and_nothing_else():
    model = Remembers().train()
    copy = replicate(model)
    parameters = zip(model.parameters(), copy.parameters(), strict=True)
    assert all(a is b for a, b in parameters)
    assert not any(module.training for module in copy.modules())
    modules = zip(model.modules(), copy.modules(), strict=True)
    assert all(type(a) is type(b) and a is not b for a, b in modules)
    assert copy.norms[0] is not model.norms[0]
    assert copy.hidden.__self__ is copy
    assert copy.count is not model.count


def test_torchscript_modules_are_refused(model):
    scripted = torch.jit.script(nn.Linear(5, 5))
    with pytest.raises(WhenceError, match="TorchScript module, which hides its calls"):
        explain(nn.Sequential(model, scripted))


def test_models_are_unwrapped(model):
    assert unwrap_model(nn.DataParallel(torch.compile(model))) is model
    assert unwrap_model(model) is model


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
