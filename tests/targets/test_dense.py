"""Places of dense heads: segmentation, depth, masks of queries and of prompts."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.families.models import build_transformers
from tests.targets.models import (
    DENSE,
    build_encoder,
    build_query_segmenter,
    check_pixels,
    make_batch,
    make_images,
)
from whence import Explainer, WhenceError, WhenceWarning, targets

METHOD = {"method": "input_x_gradient"}


@pytest.fixture(scope="module")
def segmenter():
    return build_transformers(
        "BeitForSemanticSegmentation",
        "BeitConfig",
        **{**DENSE, "num_hidden_layers": 4},
        image_size=16,
        out_indices=[1, 2, 3, 4],
        pool_scales=[1, 2],
        use_auxiliary_head=False,
        id2label={0: "sky", 1: "grass", 2: "road"},
    )


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


def test_shares_of_height_and_width(segmenter):
    images, explainer = {"pixel_values": make_images()}, Explainer(segmenter)
    rows, columns = segmenter(**images).logits.shape[2:]
    result = explainer.explain(images, targets.pixel(0.5, 0.9, "grass"), **METHOD)
    place = int(0.5 * rows), int(0.9 * columns)
    assert result.target_names == [f"grass (row {place[0]}, column {place[1]})"] * 2
    check_pixels(result, segmenter, [lambda r: r.logits[0, 1, *place]] * 2)
    with pytest.raises(WhenceError, match="share from 0 to below 1"):
        targets.pixel(0.5, 1.0)


def test_masks_of_the_image_and_of_each_sample(segmenter):
    images, explainer = {"pixel_values": make_images()}, Explainer(segmenter)
    logits = segmenter(**images).logits
    rows, columns = logits.shape[2:]
    of_image = np.zeros((2, 16, 16), dtype=bool)
    of_image[0, :4], of_image[1, 8:, :4] = True, True
    result = explainer.explain(images, targets.pixel(of_image, label=2), **METHOD)
    down, across = 16 // rows, 16 // columns
    shares = torch.from_numpy(of_image).double().reshape(2, rows, down, columns, across)
    weights = shares.mean((2, 4))
    expected = (logits[:, 2] * weights).sum((1, 2)) / weights.sum((1, 2))
    assert torch.allclose(result.values, expected)
    assert result.areas[0].bounds == (0.0, 0.0, 1.0, 0.25)
    assert result.areas[1].bounds == (0.0, 0.5, 0.25, 1.0)
    with pytest.raises(WhenceError, match="3 masks were given for 2 sample"):
        explainer.explain(images, targets.pixel(np.ones((3, rows, columns))), **METHOD)
    with pytest.raises(WhenceError, match="at least one place, for each sample"):
        explainer.explain(images, targets.pixel(np.zeros((rows, columns))), **METHOD)


def test_all_places_that_the_model_gives_to_a_label(segmenter):
    images, explainer = {"pixel_values": make_images()}, Explainer(segmenter)
    logits = segmenter(**images).logits
    decided = logits.argmax(1)
    most = [int(one.flatten().bincount(minlength=3).argmax()) for one in decided]
    result = explainer.explain(images, targets.pixel(), **METHOD)
    assert result.target.tolist() == most
    expected = [logits[n, of][decided[n] == of].mean() for n, of in enumerate(most)]
    assert torch.allclose(result.values, torch.stack(expected))
    wanted = next(of for of in range(3) if (decided == of).flatten(1).any(1).all())
    named = explainer.explain(images, targets.pixel(label=wanted), **METHOD)
    count = int((decided[0] == wanted).sum())
    assert named.target_names[0] == f"{['sky', 'grass', 'road'][wanted]} ({count} places)"


def score_classes(returned):
    """The semantic scores of places, as segmentations are made of masks of queries."""
    chances = returned.class_queries_logits.softmax(-1)[0, :, :-1]
    places = returned.masks_queries_logits.sigmoid()[0]
    scores = torch.zeros(chances.shape[1], *places.shape[1:], dtype=places.dtype)
    for query in range(len(chances)):
        for label in range(chances.shape[1]):
            scores[label] = scores[label] + chances[query, label] * places[query]
    return scores


def test_a_place_of_masks_of_queries():
    model, images = build_query_segmenter(), {"pixel_values": make_images()}
    explainer = Explainer(model)
    result = explainer.explain(images, targets.pixel(1, 2, "road"), **METHOD)
    check_pixels(result, model, [lambda r: score_classes(r)[2, 1, 2].log()] * 2)
    scores = score_classes(model(pixel_values=make_images()[:1]))
    chance = scores[2, 1, 2] / scores[:, 1, 2].sum()
    assert torch.allclose(result.probabilities[0].double(), chance)
    highest = explainer.explain(images, targets.pixel(1, 2), **METHOD)
    assert int(highest.target[0]) == int(scores[:, 1, 2].argmax())
    whole = explainer.explain(images, targets.pixel(), **METHOD)
    decided = scores.argmax(0)
    assert int(whole.target[0]) == int(decided.flatten().bincount().argmax())
    mean = scores[whole.target[0]][decided == whole.target[0]].log().mean()
    assert torch.allclose(whole.values[0], mean)


def test_relevance_starts_at_the_logits_of_the_queries_that_decide():
    # Probabilities of nearly 1 have no gradient, but the relevance of what made them.
    class Masks(nn.Module):
        def forward(self, pixel_values):
            x = pixel_values.mean(1)
            masks = torch.stack([400 * x, -400 * x], 1)
            return {
                "class_queries_logits": torch.stack([masks[..., 0, 0], -masks[..., 0, 0]], 2),
                "masks_queries_logits": masks,
            }

    images = torch.rand(1, 3, 4, 4) + 1
    target = targets.pixel(3, 1, 0)
    with pytest.warns(WhenceWarning, match="all zeros"):
        result = Explainer(Masks()).explain(images, target, method="input_x_gradient")
    assert not result.scores.any()
    relevance = Explainer(Masks()).explain(images, target, method="lrp").heatmap()[0]
    assert relevance[0, 0] > 0
    assert relevance[3, 1] > 0


def test_depth_has_no_classes():
    class Depth(nn.Module):
        def forward(self, pixel_values):
            return {"predicted_depth": 10 * pixel_values.mean(1)}

    images, explainer = torch.rand(2, 3, 8, 8), Explainer(Depth())
    result = explainer.explain(images, targets.pixel(2, 3), **METHOD)
    assert result.target_names == ["depth (row 2, column 3)"] * 2
    assert torch.allclose(result.values, 10 * images[:, :, 2, 3].mean(1))
    assert result.probabilities.isnan().all()
    assert torch.equal(result.heatmap()[0] > 0, torch.arange(64).reshape(8, 8) == 19)
    whole = explainer.explain(images, targets.pixel(), **METHOD)
    assert torch.allclose(whole.values, 10 * images.mean((1, 2, 3)))
    with pytest.raises(WhenceError, match="tells the depth of a place and no classes"):
        explainer.explain(images, targets.pixel(2, 3, "cat"), **METHOD)
    with pytest.raises(WhenceError, match=r"finds no logits\. Name a place, target=targets\.pixel"):
        explainer.explain(images, **METHOD)


def test_masks_for_a_prompt():
    class Masks(nn.Module):
        def forward(self, pixel_values):
            masks = pixel_values[:, None] - 0.5
            return {"pred_masks": masks, "iou_scores": torch.tensor([[[0.1, 0.9, 0.3]]] * 2)}

    images, explainer = torch.rand(2, 3, 8, 8), Explainer(Masks())
    best = explainer.explain(images, targets.pixel(2, 3), **METHOD)
    assert best.target_names == ["mask 1 (row 2, column 3)"] * 2
    assert torch.allclose(best.values, images[:, 1, 2, 3] - 0.5)
    assert torch.allclose(best.probabilities, (images[:, 1, 2, 3] - 0.5).sigmoid())
    other = explainer.explain(images, targets.pixel(label=2), **METHOD)
    inside = [one[2][one[2] > 0.5].mean() - 0.5 for one in images]
    assert torch.allclose(other.values, torch.stack(inside))


def test_models_without_places():
    class Words(nn.Module):
        def forward(self, pixel_values):
            return {"words": pixel_values}

    with pytest.raises(WhenceError, match="finds no values of places"):
        Explainer(Words()).explain(torch.rand(1, 3, 8, 8), targets.pixel(0, 0), **METHOD)
    model = build_encoder("ForSequenceClassification")
    with pytest.raises(WhenceError, match=r"is a target of .*\(2, 2\)"):
        Explainer(model).explain(make_batch(), targets.pixel(0, 0), **METHOD)
