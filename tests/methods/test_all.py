"""What every method promises, whatever it computes."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from tests.methods.plain_models import to_double
from tests.zoo import CASES, build_model, run_model, select_samples
from whence import Explainer, WhenceError, methods

# Enough for what is tested here; accuracy is for the tests of each method.
QUICK = {
    "dave": {"samples": 3},
    "integrated_gradients": {"steps": 3},
    "rise": {"masks": 20},
    "search": {"budget": 4},
    "smoothgrad": {"samples": 3},
}
KINDS = {
    "class token": "ViTForImageClassification-sdpa",
    "eager": "ViTForImageClassification-eager",
    "average pooling": "timm-vit-average-fused",
    "rectangle": "timm-vit-rectangle-fused",
    "padded text": "Bert-sdpa",
    "padded text, eager": "Bert-eager",
}


@pytest.fixture(params=methods.available())
def method(request) -> str:
    return request.param


of_images = pytest.mark.parametrize("method", methods.available("image"))


@pytest.fixture(params=KINDS)
def case(request):
    return CASES[KINDS[request.param]]


def is_supported(method: str, case) -> bool:
    return ("text" if case.grid is None else "image") in methods.describe(method).inputs


def explain(model: nn.Module, inputs, method: str, **options):
    return Explainer(model).explain(inputs, method=method, **{**QUICK.get(method, {}), **options})


def test_every_model_every_method(method, case):
    """Shape, finiteness, determinism, batch independence; model and random state untouched."""
    model, inputs = build_model(case).double(), to_double(case.inputs())
    if not is_supported(method, case):
        with pytest.raises(WhenceError, match=f"'{method}' explains .*s only"):
            explain(model, inputs, method)
        return
    before = copy.deepcopy(model)
    random_state = torch.get_rng_state()
    result = explain(model, inputs, method, classes=[0, 2])
    units = case.grid[0] * case.grid[1] if case.grid else 10
    assert result.scores.shape == (3, 2, units)
    assert result.scores.dtype == torch.float64
    assert torch.isfinite(result.scores).all()
    assert not result.scores.requires_grad
    assert torch.equal(explain(model, inputs, method, classes=[0, 2]).scores, result.scores)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_unchanged(model, before)
    for i in range(3):
        alone = select_samples(inputs, slice(i, i + 1))
        if case.grid is None:  # as long as it is, without padding
            real = alone["attention_mask"].sum()
            alone = {name: value[:, :real] for name, value in alone.items()}
            assert not result.scores[i, :, real:].any()
        scores = explain(model, alone, method, target=2).scores[0]
        expected = result.scores[i, 1, : len(scores)]
        assert torch.allclose(scores, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


def assert_unchanged(model: nn.Module, before: nn.Module) -> None:
    for (name, now), (_, then) in zip(model.named_modules(), before.named_modules(), strict=True):
        assert now.training == then.training
        assert not now._forward_hooks, name
        assert not now._forward_pre_hooks, name
        assert not now._backward_hooks, name
        assert now.__dict__.keys() == then.__dict__.keys(), name
    for (name, now), (_, then) in zip(
        model.state_dict().items(), before.state_dict().items(), strict=True
    ):
        assert torch.equal(now, then), name
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None


@of_images
def test_float32(method):
    case = CASES["ViTForImageClassification-sdpa"]
    result = explain(build_model(case), case.inputs(), method)
    assert result.scores.dtype == torch.float32
    assert torch.isfinite(result.scores).all()


def _skip_if_the_model_fails(model, inputs) -> None:
    try:
        run_model(model, inputs)
    except RuntimeError as error:  # some releases of transformers make masks on the default device
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_defaults_for_new_tensors_do_not_matter(method, name):
    case = CASES[name]
    if not is_supported(method, case):
        pytest.skip("for other inputs")
    model, inputs = build_model(case), case.inputs()
    expected = explain(model, inputs, method, classes=[0, 1]).scores
    try:
        torch.set_default_dtype(torch.float64)
        if method != "integrated_gradients":  # Captum makes tensors on the default device
            torch.set_default_device("meta")  # where numbers that a method makes would be lost
            _skip_if_the_model_fails(model, inputs)
        found = explain(model, inputs, method, classes=[0, 1]).scores
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@of_images
def test_an_empty_image(method):
    case = CASES["ViTForImageClassification-sdpa"]
    inputs = {"pixel_values": torch.zeros(1, 3, 32, 32)}
    assert torch.isfinite(explain(build_model(case), inputs, method, classes=[0, 1]).scores).all()


def test_one_token(method):
    case = CASES["Bert-sdpa"]
    if not is_supported(method, case):
        pytest.skip("for other inputs")
    inputs = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.tensor([[1]])}
    result = explain(build_model(case), inputs, method, classes=[0, 1])
    assert result.scores.shape == (1, 2, 1)
    assert torch.isfinite(result.scores).all()


@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_uniform_attention(method, name):
    case = CASES[name]
    if not is_supported(method, case):
        pytest.skip("for other inputs")
    model = build_model(case)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "query" in path or "q_proj" in path:
                parameter.zero_()
    result = explain(model, case.inputs(), method, keep_evidence=True)
    real = result.evidence.attention[0][0, 0, 0]
    assert torch.allclose(real, real.mean(), atol=1e-6)
    assert torch.isfinite(result.scores).all()


@of_images
def test_methods_that_are_not_class_specific_ignore_the_class(method):
    if methods.describe(method).class_specific:
        pytest.skip("class-specific")
    # The class token and the patches' mean weigh differently for each class.
    case = CASES["Dinov2ForImageClassification-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    scores = explain(model, inputs, method, classes=[0, 1, 2]).scores
    assert torch.equal(scores[:, :1].expand_as(scores), scores)
    assert torch.equal(explain(model, inputs, method, target=3).scores, scores[:, 0])


@of_images
def test_a_constant_logit(method):
    case = CASES["ViTForImageClassification-sdpa"]
    model = build_model(case)
    with torch.no_grad():
        model.classifier.weight.zero_()
    result = explain(model, case.inputs(), method)
    assert torch.isfinite(result.scores).all()
    about = methods.describe(method)
    # Masks weighted by one and the same number show how often chance kept each patch.
    if about.class_specific and method != "rise":
        assert result.scores.abs().max() < 1e-6


# The description ---------------------------------------------------------------------------------


def test_the_description_is_complete(method):
    about = methods.describe(method)
    assert about.name == method
    assert about.summary.endswith(".")
    assert "\n" not in about.summary
    assert len(about.summary) < 120
    assert about.cost
    assert about.citation or method == "random"
    assert set(about.inputs) <= {"image", "text"} or about.inputs == ("image prompt",)
    assert method in str(about)


@of_images
def test_every_method_with_gradients_can_balance_them(method):
    about = methods.describe(method)
    uses = any("gradient" in kind for kind in about.needs)
    # Some read their own, and the search those of its candidates.
    if method not in ("attnlrp", "reslrp", "search"):
        assert uses <= ("gradients" in about.options)
    if "gradients" not in about.options:
        return
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    kinds = ("plain", "balanced", "residual")
    plain, balanced, residual = (
        explain(model, inputs, method, gradients=kind).scores for kind in kinds
    )
    for one, other in ((plain, balanced), (balanced, residual)):
        assert torch.isfinite(other).all()
        # A winner of the search may be one that uses no gradients.
        assert method == "search" or not torch.allclose(one, other, rtol=1e-3)
    usual = balanced if method in ("dave", "shared_evidence", "whence") else plain
    assert torch.equal(usual, explain(model, inputs, method).scores)


def test_options_are_checked(method):
    case = CASES["ViTForImageClassification-sdpa"]
    with pytest.raises(WhenceError, match=f"'{method}' has no option 'nonsense'"):
        explain(build_model(case), case.inputs(), method, nonsense=1)
    for field in dataclasses.fields(methods.get(method)):
        with pytest.raises(WhenceError, match=f"'{field.name}' of method '{method}' must be"):
            methods.build(method, {field.name: object()})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**70, -(2**70)])
def test_numbers_that_are_not_finite_or_too_large_are_refused(method, value):
    for option, (kind, _) in methods.describe(method).options.items():
        if kind.startswith(type(value).__name__):
            with pytest.raises(WhenceError, match=f"^{option}="):
                methods.build(method, {option: value})
