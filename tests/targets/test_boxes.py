"""Boxes of detection models, and masks of queries."""

import pytest
import torch

from tests.families.models import build_transformers
from tests.targets.models import (
    DENSE,
    build_encoder,
    build_query_segmenter,
    check_pixels,
    make_batch,
    make_images,
)
from whence import Explainer, Explanation, WhenceError, targets

METHOD = {"method": "input_x_gradient"}


@pytest.fixture(scope="module")
def detector():
    return build_transformers(
        "YolosForObjectDetection",
        "YolosConfig",
        **DENSE,
        image_size=[16, 16],
        num_detection_tokens=3,
        use_mid_position_embeddings=False,
        id2label={0: "cat", 1: "dog"},
    )


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


def test_a_query_for_each_sample(detector):
    images = {"pixel_values": make_images()}
    result = Explainer(detector).explain(images, targets.box([2, 0], "cat"), **METHOD)
    check_pixels(result, detector, [lambda r: r.logits[0, 2, 0], lambda r: r.logits[0, 0, 0]])
    assert result.target_names == ["cat (box 2)", "cat (box 0)"]
    with pytest.raises(WhenceError, match="3 queries were given for 2 sample"):
        Explainer(detector).explain(images, targets.box([2, 0, 1]), **METHOD)
    with pytest.raises(WhenceError, match="query is a whole number"):
        targets.box("cat")


def test_the_box_itself_is_told_and_saved(detector, tmp_path):
    images = {"pixel_values": make_images()}
    result = Explainer(detector).explain(images, targets.box(1, "dog"), **METHOD)
    x, y, width, height = detector(**images).pred_boxes[1, 1].tolist()
    sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    expected = [min(max(side, 0), 1) for side in sides]
    assert result.areas[1].bounds == pytest.approx(expected)
    result.save(tmp_path / "a.safetensors")
    again = Explanation.load(tmp_path / "a.safetensors")
    assert again.areas == result.areas
    assert again[1].get_class().area == result.areas[1]
    assert again[1].areas == result.areas[1:]
    several = Explainer(detector).explain(
        images, classes=[targets.box(0), targets.box(1)], **METHOD
    )
    assert several.areas[1][1] == result.areas[1]


def test_boxes_are_relative_to_what_is_no_padding():
    class Boxes(torch.nn.Module):
        def forward(self, pixel_values, pixel_mask=None):
            logits = pixel_values.mean((2, 3))[:, None] * torch.tensor([1.0, 2.0, 3.0])
            boxes = torch.tensor([0.5, 0.5, 0.5, 0.5]).expand(len(pixel_values), 1, 4)
            return {"logits": logits, "pred_boxes": boxes}

    mask = torch.zeros(1, 8, 8, dtype=torch.long)
    mask[:, :4] = 1  # the lower half is padding
    inputs = {"pixel_values": torch.rand(1, 3, 8, 8), "pixel_mask": mask}
    result = Explainer(Boxes()).explain(inputs, targets.box(0, 1), **METHOD)
    assert result.areas[0].bounds == pytest.approx((0.25, 0.125, 0.75, 0.375))


def test_the_class_of_a_mask():
    model, images = build_query_segmenter(), {"pixel_values": make_images()}
    returned = model(**images)
    result = Explainer(model).explain(images, targets.box(1, "grass"), **METHOD)
    check_pixels(result, model, [lambda r: r.class_queries_logits[0, 1, 1]] * 2)
    assert result.target_names == ["grass (mask 1)"] * 2
    chances = returned.class_queries_logits.softmax(-1)
    assert torch.allclose(result.probabilities.double(), chances[:, 1, 1])
    best = Explainer(model).explain(images, targets.box(), **METHOD)
    query, label = divmod(int(chances[0, :, :-1].flatten().argmax()), 3)
    assert best.target_names[0] == f"{['sky', 'grass', 'road'][label]} (mask {query})"


@pytest.mark.parametrize("tokenizer", [None, "words"])
def test_boxes_by_texts(tokenizer):
    class Words:
        all_special_ids = (0, 2, 8)

        def decode(self, ids):
            return " ".join(f"w{i}" for i in ids)

    sizes = {"hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": 2, "eos_token_id": 8, "pad_token_id": 0}
    model = build_transformers(
        "OwlViTForObjectDetection",
        "OwlViTConfig",
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        text_config={**sizes, **ends, "vocab_size": 9, "max_position_embeddings": 8},
        projection_dim=16,
    )
    ids = torch.tensor([[2, 5, 8], [2, 6, 8], [0, 0, 0]])  # the last is padding
    inputs = {"pixel_values": make_images(1), "input_ids": ids, "attention_mask": ids * 0 + 1}
    explainer = Explainer(model, tokenizer=None if tokenizer is None else Words())
    target = targets.box(2, 1) if tokenizer is None else targets.box(2, "w6")
    result = explainer.explain(inputs, target, of="pixel_values", **METHOD)
    assert result.target_names == ["text 1 (box 2)" if tokenizer is None else "w6 (box 2)"]
    logits = model(**inputs).logits
    assert torch.allclose(result.values, logits[:, 2, 1])
    assert torch.allclose(result.probabilities, logits[:, 2, 1].sigmoid())


def test_a_classifier_has_no_boxes():
    model = build_encoder("ForSequenceClassification")
    with pytest.raises(WhenceError, match=r"is a target of .*\(2, 2\)"):
        Explainer(model).explain(make_batch(), targets.box(), **METHOD)
