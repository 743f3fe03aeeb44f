import pytest
import torch
from captum.attr import NoiseTunnel, Saliency

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
from whence.methods.smoothgrad import SmoothGrad

CLASSES = [0, 2]
OPTIONS = {"method": "smoothgrad", "samples": 4, "noise": 0.2, "seed": 5}


def draw_noise(values, real):
    """The noise of each copy of one sample, drawn by itself for the real tokens."""
    seeds = torch.randint(2**62, (4,), generator=torch.Generator().manual_seed(5)).tolist()
    deviation = 0.2 * (values[real].max() - values[real].min())
    copies = []
    for seed in seeds:
        noise = torch.zeros_like(values)
        generator = torch.Generator().manual_seed(seed)
        noise[real] = torch.randn(values[real].shape, generator=generator).double() * deviation
        copies.append(noise)
    return torch.stack(copies)


def compute_by_captum(plain, index, real, target, monkeypatch):
    """The averaged gradient of one sample, with the noise that Captum draws replaced by ours."""
    values, arguments = plain.select(index)
    noise = draw_noise(values[0], real)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "normal", lambda _mean, deviation: noise.view_as(deviation))
        gradient = NoiseTunnel(Saliency(plain.forward)).attribute(
            values,
            nt_samples=4,
            target=target,
            additional_forward_args=arguments or None,
            abs=False,
        )
    return gradient[0]


@pytest.mark.parametrize("name", IMAGES)
def test_image(name, monkeypatch):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, **OPTIONS)
    for i, target in enumerate(CLASSES):
        for index in range(3):
            gradient = compute_by_captum(plain, index, slice(None), target, monkeypatch)
            expected = split_patches(gradient.abs().amax(0)).mean(-1)
            assert relative_error(result.scores[index, i], expected) < 1e-9


def test_text(monkeypatch):
    plain = build_text_model()
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, **OPTIONS)
    lengths = plain.batch["attention_mask"].sum(1).tolist()
    for i, target in enumerate(CLASSES):
        for index, length in enumerate(lengths):
            gradient = compute_by_captum(plain, index, slice(length), target, monkeypatch)
            expected = gradient.norm(dim=-1)[:length]
            assert relative_error(result.scores[index, i, :length], expected) < 1e-9
            assert result.scores[index, i, length:].eq(0).all()


def test_padding_the_batch_and_the_memory_change_nothing():
    plain = build_text_model()
    explainer = Explainer(plain.model)
    whole = explainer.explain(plain.batch, 1, **OPTIONS).scores
    longer = explainer.explain(add_padding(plain.batch), 1, **OPTIONS).scores
    assert relative_error(longer[:, :10], whole) < 1e-9
    for index in range(3):
        alone = explainer.explain(
            select_samples(plain.batch, slice(index, index + 1)), 1, **OPTIONS
        )
        assert relative_error(alone.scores[0], whole[index]) < 1e-9
    narrow = explainer.explain(plain.batch, 1, memory=1e-9, **OPTIONS).scores
    assert relative_error(narrow, whole) < 1e-9


def test_other_seeds_give_other_noise_and_single_precision_the_same():
    plain = build_image_model(IMAGES[0])
    explainer = Explainer(plain.model)
    whole = explainer.explain(plain.batch, 1, **OPTIONS).scores
    other = explainer.explain(plain.batch, 1, **{**OPTIONS, "seed": 6}).scores
    assert relative_error(other, whole) > 0.01
    single = Explainer(plain.model.float()).explain(plain.batch.float(), 1, **OPTIONS).scores
    assert relative_error(single.double(), whole) < 1e-3


def test_without_noise_it_is_the_gradient():
    plain = build_text_model()
    explainer = Explainer(plain.model)
    for gradients in ("plain", "balanced"):
        options = {"classes": CLASSES, "gradients": gradients}
        smooth = explainer.explain(plain.batch, **{**OPTIONS, **options, "noise": 0})
        expected = explainer.explain(plain.batch, method="gradient", **options)
        assert relative_error(smooth.scores, expected.scores) < 1e-9


def test_the_random_state_stays_and_gradients_may_be_off():
    plain = build_image_model(IMAGES[0])
    before = torch.get_rng_state()
    with torch.no_grad():
        inside = Explainer(plain.model).explain(plain.batch, 1, **OPTIONS).scores
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(inside, Explainer(plain.model).explain(plain.batch, 1, **OPTIONS).scores)


def test_degenerate_input_is_finite():
    unmoving = Explainer(build_constant_model()).explain(
        make_images(32, 32), classes=[0, 1], **OPTIONS
    )
    assert torch.equal(unmoving.scores, torch.zeros(3, 2, 16))
    plain = build_image_model(IMAGES[0])
    empty = plain.inputs * 0
    scores = Explainer(plain.model).explain(empty, 1, **OPTIONS).scores
    # A range of nothing has no noise.
    expected = Explainer(plain.model).explain(empty, 1, method="gradient").scores
    assert relative_error(scores, expected) < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples=0 must be at least 1"),
        ({"noise": -0.1}, "noise=-0.1 must not be negative"),
        ({"samples": 2.5}, "'samples' .* must be a whole number, not 2.5"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(build_constant_model()).explain(make_images(32, 32), **{**OPTIONS, **options})


def test_many_classes_go_in_groups(monkeypatch):
    """Averaged gradients have the size of the inputs for each class, and would fill the memory."""
    monkeypatch.setattr("whence.engine.eager._MAPS_AT_ONCE", 6)
    plain, seen, call = build_image_model(IMAGES[0]), [], SmoothGrad.__call__

    def watched(self, evidence):
        seen.append(evidence.targets.count)
        return call(self, evidence)

    expected = Explainer(plain.model).explain(plain.batch, classes=CLASSES, **OPTIONS).scores
    monkeypatch.setattr(SmoothGrad, "__call__", watched)
    result = Explainer(plain.model).explain(plain.batch, classes=[0, 1, 2], **OPTIONS)
    assert seen == [2, 1]
    assert relative_error(result.scores[:, CLASSES], expected) < 1e-12
