import sys

import pytest
import torch
from captum.attr import IntegratedGradients

from tests.methods.plain_models import (
    IMAGES,
    add_padding,
    build_constant_model,
    build_image_model,
    build_text_model,
    relative_error,
    split_patches,
)
from tests.zoo import make_images, select_samples
from whence import Explainer, WhenceError

CLASSES = [0, 2]
METHOD = {"method": "integrated_gradients"}
RULES = ["gausslegendre", "riemann_middle", "riemann_left", "riemann_right"]


@pytest.mark.parametrize("name", IMAGES)
def test_image(name):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, steps=5, baseline=0.3, **METHOD
    )
    for i, target in enumerate(CLASSES):
        of_pixels = IntegratedGradients(plain.forward).attribute(
            plain.inputs, baselines=0.3, target=target, n_steps=5
        )
        expected = split_patches(of_pixels.sum(1)).sum(-1)
        assert relative_error(result.scores[:, i], expected) < 1e-8


@pytest.mark.parametrize("rule", RULES)
def test_text(rule):
    plain = build_text_model()
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, steps=4, rule=rule, **METHOD
    )
    for i, target in enumerate(CLASSES):
        attribution = IntegratedGradients(plain.forward).attribute(
            plain.inputs,
            target=target,
            additional_forward_args=plain.arguments,
            n_steps=4,
            method=rule,
        )
        expected = attribution.sum(-1) * plain.batch["attention_mask"]
        assert relative_error(result.scores[:, i], expected) < 1e-8


@pytest.mark.parametrize("baseline", [0.0, 0.2])
def test_scores_sum_to_the_change_of_the_logit(baseline):
    plain = build_text_model()
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, steps=150, baseline=baseline, **METHOD
    )
    empty = torch.full_like(plain.inputs, baseline)
    gained = plain.forward(plain.inputs, *plain.arguments) - plain.forward(empty, *plain.arguments)
    assert relative_error(result.scores.sum(-1), gained[:, CLASSES]) < 1e-4


def test_weights_of_the_trapezoidal_rule_sum_to_one():
    plain = build_text_model()
    result = Explainer(plain.model).explain(
        plain.batch, 1, steps=9, rule="riemann_trapezoid", **METHOD
    )
    gradients = []
    for share in torch.linspace(0, 1, 9).double():
        at = (plain.inputs * share).requires_grad_()
        logits = plain.forward(at, *plain.arguments)
        gradients.append(torch.autograd.grad(logits[:, 1].sum(), at)[0])
    integral = torch.trapezoid(torch.stack(gradients), dx=1 / 8, dim=0)
    expected = (plain.inputs * integral).sum(-1) * plain.batch["attention_mask"]
    assert relative_error(result.scores, expected) < 1e-6


def test_padding_the_batch_and_the_memory_change_nothing():
    plain = build_text_model()
    explainer = Explainer(plain.model)
    options = {**METHOD, "steps": 5, "target": 1}
    whole = explainer.explain(plain.batch, **options).scores
    longer = explainer.explain(add_padding(plain.batch), **options).scores
    assert relative_error(longer[:, :10], whole) < 1e-9
    for index in range(3):
        alone = explainer.explain(select_samples(plain.batch, slice(index, index + 1)), **options)
        assert relative_error(alone.scores[0], whole[index]) < 1e-9
    narrow = explainer.explain(plain.batch, memory=1e-9, **options).scores
    assert relative_error(narrow, whole) < 1e-9


def test_balanced_gradients():
    plain = build_text_model()
    explainer = Explainer(plain.model)
    result = explainer.explain(plain.batch, 1, steps=2, gradients="balanced", **METHOD)
    expected = torch.zeros(3, 10).double()
    # The two points of Gauss and Legendre's rule, of the same weight.
    for share in (0.5 - 12**-0.5, 0.5 + 12**-0.5):
        at = {"inputs_embeds": plain.inputs * share, "attention_mask": plain.arguments[0]}
        one = explainer.explain(at, 1, method="input_x_gradient", gradients="balanced")
        expected += one.scores / share / 2
    assert relative_error(result.scores, expected) < 1e-6


def test_the_random_state_stays_and_gradients_may_be_off():
    plain = build_image_model(IMAGES[0])
    before = torch.get_rng_state()
    with torch.no_grad():
        inside = Explainer(plain.model).explain(plain.batch, 1, steps=2, **METHOD).scores
    assert torch.equal(torch.get_rng_state(), before)
    outside = Explainer(plain.model).explain(plain.batch, 1, steps=2, **METHOD).scores
    assert torch.equal(inside, outside)


def test_degenerate_input_gives_zeros():
    unmoving = Explainer(build_constant_model()).explain(
        make_images(32, 32), classes=[0, 1], steps=2, **METHOD
    )
    assert torch.equal(unmoving.scores, torch.zeros(3, 2, 16))
    plain = build_image_model(IMAGES[0])
    empty = Explainer(plain.model).explain(plain.inputs * 0, steps=2, **METHOD)
    assert torch.equal(empty.scores, torch.zeros(3, 16).double())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0 is too few: rule 'gausslegendre' needs at least 1"),
        ({"steps": 1, "rule": "riemann_left"}, "rule 'riemann_left' needs at least 2"),
        ({"rule": "simpson"}, "'rule' .* must be 'gausslegendre' or .*, not 'simpson'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(build_constant_model()).explain(make_images(32, 32), **METHOD, **options)


def test_without_captum_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(WhenceError, match=r"needs captum, .* pip install 'whence\[methods\]'"):
        Explainer(build_constant_model()).explain(make_images(32, 32), **METHOD)


@pytest.mark.parametrize("method", ["integrated_gradients", "smoothgrad"])
def test_a_model_that_switches_gradients_off_gets_a_sentence(method):
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(3, 2)

        def forward(self, x):
            with torch.no_grad():
                features = x.mean((2, 3))
            return self.head(features)

    explainer, images = Explainer(Frozen()), torch.rand(1, 3, 8, 8)
    assert explainer.explain(images, method="input_x_gradient").scores.any()
    with pytest.raises(WhenceError, match=f"switches gradients off.*'{method}' needs them"):
        explainer.explain(images, method=method)
