"""Boxes of detection models, and places of dense heads."""

import pytest
import torch

from tests.families.models import build_transformers
from tests.targets.models import build_encoder, make_batch, make_images, multiply_pixels
from whence import Explainer, WhenceError, targets

METHOD = {"method": "input_x_gradient"}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "patch_size": 8,
}


@pytest.fixture(scope="module")
def detector():
    return build_transformers(
        "YolosForObjectDetection",
        "YolosConfig",
        **SIZES,
        image_size=[16, 16],
        num_detection_tokens=3,
        use_mid_position_embeddings=False,
        id2label={0: "cat", 1: "dog"},
    )


@pytest.fixture(scope="module")
def segmenter():
    return build_transformers(
        "BeitForSemanticSegmentation",
        "BeitConfig",
        **{**SIZES, "num_hidden_layers": 4},
        image_size=16,
        out_indices=[1, 2, 3, 4],
        pool_scales=[1, 2],
        use_auxiliary_head=False,
        id2label={0: "sky", 1: "grass", 2: "road"},
    )


def check_pixels(result, model, reads):
    pixels = make_images()
    for sample, read in enumerate(reads):
        expected = multiply_pixels(model, pixels[sample : sample + 1], read)
        assert torch.allclose(result.scores[sample], expected, rtol=1e-6, atol=1e-9)


def test_a_class_of_a_query(detector):
    images = {"pixel_values": make_images()}
    result = Explainer(detector).explain(images, targets.box(1, "dog"), **METHOD)
    check_pixels(result, detector, [lambda r: r.logits[0, 1, 1]] * 2)
    assert result.target_names == ["dog (box 1)"] * 2
    logits = detector(**images).logits
    assert torch.allclose(result.logits, logits[:, 1])
    assert torch.allclose(result.probabilities.double(), logits[:, 1].softmax(1)[:, 1])


def test_the_most_confident_box(detector):
    images = {"pixel_values": make_images()}
    chances = detector(**images).logits.softmax(-1)[..., :-1]  # the last class is no object
    result = Explainer(detector).explain(images, targets.box(), **METHOD)
    best = [divmod(int(one.flatten().argmax()), 2) for one in chances]
    assert result.target.tolist() == [label for _, label in best]
    check_pixels(result, detector, [lambda r, q=q, c=c: r.logits[0, q, c] for q, c in best])
    cats = Explainer(detector).explain(images, targets.box(label="cat"), **METHOD)
    queries = chances[..., 0].argmax(1).tolist()
    assert cats.target_names == [f"cat (box {query})" for query in queries]


def test_a_box_against_another(detector):
    images = {"pixel_values": make_images()}
    explainer = Explainer(detector)
    result = explainer.explain(images, targets.box(1, 0), against=targets.box(1, 1), **METHOD)
    check_pixels(result, detector, [lambda r: r.logits[0, 1, 0] - r.logits[0, 1, 1]] * 2)
    assert result.target_names == ["cat (box 1) rather than dog (box 1)"] * 2


def test_boxes_work_with_methods_of_attention(detector):
    images = {"pixel_values": make_images()}
    for method in ("whence", "tiba", "gae", "rollout"):
        result = Explainer(detector).explain(
            images, classes=[targets.box(0, 0), targets.box(2, 1)], method=method
        )
        assert result.scores.shape == (2, 2, 4)
        alone = Explainer(detector).explain(images, targets.box(2, 1), method=method)
        assert torch.allclose(result.scores[:, 1], alone.scores, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (targets.box(3), "Query 3 does not exist: the model has 3, 0 to 2"),
        (targets.box(0, "cow"), "no class 'cow'. The model has"),
    ],
)
def test_boxes_that_are_not_there(detector, target, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(detector).explain({"pixel_values": make_images()}, target, **METHOD)


def test_a_class_at_a_place(segmenter):
    images = {"pixel_values": make_images()}
    result = Explainer(segmenter).explain(images, targets.pixel(2, 5, "grass"), **METHOD)
    check_pixels(result, segmenter, [lambda r: r.logits[0, 1, 2, 5]] * 2)
    assert result.target_names == ["grass (row 2, column 5)"] * 2
    highest = Explainer(segmenter).explain(images, targets.pixel(2, 5), **METHOD)
    assert highest.target.tolist() == segmenter(**images).logits[:, :, 2, 5].argmax(1).tolist()


def test_a_mask_of_places_is_averaged(segmenter):
    images = {"pixel_values": make_images()}
    rows, columns = segmenter(**images).logits.shape[2:]
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    mask[1:3, 2:6] = True
    result = Explainer(segmenter).explain(images, targets.pixel(mask, label=2), **METHOD)
    check_pixels(result, segmenter, [lambda r: r.logits[0, 2][mask].mean()] * 2)
    assert result.target_names == ["road (8 places)"] * 2


def test_places_that_are_not_there(segmenter):
    images, explainer = {"pixel_values": make_images()}, Explainer(segmenter)
    for target in (targets.pixel(99, 0), targets.pixel(0, -1)):
        with pytest.raises(WhenceError, match="does not exist: the head's grid has rows 0 to"):
            explainer.explain(images, target, **METHOD)
    with pytest.raises(WhenceError, match=r"mask has shape \(3, 3\); the head's grid is"):
        explainer.explain(images, targets.pixel(torch.ones(3, 3)), **METHOD)
    with pytest.raises(WhenceError, match="row and a column"):
        targets.pixel(3)
    with pytest.raises(WhenceError, match="needs no column"):
        targets.pixel(torch.ones(3, 3), 2)


@pytest.mark.parametrize("target", [targets.box(), targets.pixel(0, 0)])
def test_a_classifier_has_neither(target):
    model = build_encoder("ForSequenceClassification")
    with pytest.raises(WhenceError, match=r"is a target of .*\(2, 2\)"):
        Explainer(model).explain(make_batch(), target, **METHOD)
