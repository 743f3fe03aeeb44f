"""GAE on DETR, against the results of the authors' own code."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.multimodal import (
    LRP_VARIANTS,
    VARIANTS,
    compute_error,
    load_model,
    mark_variants,
    read_multimodal,
    read_sizes,
)
from whence import Explainer, WhenceError, targets


def list_boxes() -> dict[tuple[int, int], list[str]]:
    """The authors' targets, by query and class, with their names: image and tag."""
    data, boxes = read_multimodal("detr_a"), dict[tuple[int, int], list[str]]()
    for name in (f"{image}/{tag}" for image in range(2) for tag in data[f"{image}/tags"]):
        key = int(data[f"{name}/query"]), int(data[f"{name}/class"])
        boxes.setdefault(key, []).append(name)
    return boxes


def explain_tags(options: dict[str, Any]) -> dict[str, Tensor]:
    """Our scores of each of the authors' targets; the images are a batch."""
    boxes, pixels = list_boxes(), torch.from_numpy(read_multimodal("detr_a")["pixel_values"])
    result = Explainer(load_model("detr_a")).explain(
        {"pixel_values": pixels},
        classes=[targets.box(query=query, label=label) for query, label in boxes],
        method="gae",
        **options,
    )
    assert result.grid == tuple(read_multimodal("detr_a")["feature_grid"])
    return {
        name: result.scores[int(name[0]), column]
        for column, names in enumerate(boxes.values())
        for name in names
    }


@pytest.mark.parametrize("variant", mark_variants(VARIANTS))
def test_maps_over_the_feature_grid(variant):
    data, options = read_multimodal("detr_a"), VARIANTS[variant]
    for name, scores in explain_tags({"zero_rows": "drop", **options}).items():
        assert compute_error(scores, data[f"{name}/{variant}"]) < 1e-8


@pytest.mark.parametrize("variant", mark_variants(LRP_VARIANTS))
def test_maps_with_relevance(variant):
    data = read_multimodal("detr_a")
    options = {"zero_rows": "drop", "rules": "reference", **LRP_VARIANTS[variant]}
    for name, scores in explain_tags(options).items():
        assert compute_error(scores, data[f"{name}/{variant}"]) < 1e-6


def test_without_aggregation():
    data = read_multimodal("detr_a")
    for name, scores in explain_tags({"aggregate": False}).items():
        assert compute_error(scores, data[f"{name}/ablation_no_aggregation"]) < 1e-8


@pytest.mark.slow
def test_the_last_cross_attention_is_the_authors_transformer_attribution():
    data = read_multimodal("detr_a")
    options = {"contribution": "relevance", "rules": "reference", "start_layer": -1}
    for name, scores in explain_tags(options).items():
        assert compute_error(scores, data[f"{name}/transformer_attribution"]) < 1e-6


def test_rows_of_zeros_keep_the_identity_by_default():
    """The authors drop an addition as a whole if one row is all zeros, ours keeps what is known."""
    data, differing = read_multimodal("detr_a"), 0
    for name, scores in explain_tags({}).items():
        dropped = data[f"{name}/ours/nan_entries_per_decoder"].any()
        agrees = compute_error(scores, data[f"{name}/ours"]) < 1e-8
        assert agrees != dropped
        assert scores.any()
        differing += dropped
    assert differing == 4


def test_rows_of_zeros_can_be_refused():
    with pytest.raises(WhenceError, match="all zeros, which cannot be divided by its sum"):
        explain_tags({"zero_rows": "refuse"})


def test_attention_and_gradients():
    """Also of the queries' self-attention, which does not depend on the image."""
    data, sizes = read_multimodal("detr_a"), read_sizes("detr_a")
    layers = [f"encoder{b}" for b in range(sizes["enc"])]
    layers += [f"decoder{b}_{kind}" for b in range(sizes["dec"]) for kind in ("self", "cross")]
    boxes = list_boxes()
    kept = (
        Explainer(load_model("detr_a"))
        .explain(
            {"pixel_values": torch.from_numpy(data["pixel_values"])},
            classes=[targets.box(query=query, label=label) for query, label in boxes],
            method="gae",
            rules="reference",
            keep_evidence=True,
        )
        .evidence
    )
    assert len(kept.attention) == len(kept.gradient) == len(layers)
    for column, names in enumerate(boxes.values()):
        for name in names:
            image = int(name[0])
            for number, layer in enumerate(layers):
                attention, gradient = kept.attention[number][image], kept.gradient[number][image]
                place = f"{name}/{layer}"
                assert compute_error(attention, data[f"{place}/attention"]) < 1e-9
                assert compute_error(gradient[column], data[f"{place}/gradient"]) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("method", ["raw_attention", "attention_gradcam"])
def test_baselines_at_the_last_cross_attention(method):
    data = read_multimodal("detr_a")
    explainer = Explainer(load_model("detr_a"))
    pixels = torch.from_numpy(data["pixel_values"][:1])
    for tag in data["0/tags"]:
        box = targets.box(query=int(data[f"0/{tag}/query"]), label=int(data[f"0/{tag}/class"]))
        scores = explainer.explain({"pixel_values": pixels}, target=box, method=method).scores[0]
        assert compute_error(scores, data[f"0/{tag}/{method}"]) < 1e-8


def test_padded_images():
    """Padding gets no score, and changes nothing for the other image."""
    pixels = torch.from_numpy(read_multimodal("detr_a")["pixel_values"])
    mask = torch.ones(len(pixels), *pixels.shape[2:], dtype=torch.long)
    mask[1, :, 96:] = 0  # the last two of five columns of features
    explainer, box = Explainer(load_model("detr_a")), targets.box(query=0, label=1)
    options = {"target": box, "method": "gae", "zero_rows": "drop"}
    both = explainer.explain({"pixel_values": pixels, "pixel_mask": mask}, **options).scores
    for i in range(2):
        inputs = {"pixel_values": pixels[i : i + 1], "pixel_mask": mask[i : i + 1]}
        assert compute_error(both[i], explainer.explain(inputs, **options).scores[0]) < 1e-12
    columns = both[1].reshape(4, 5)
    assert columns[:, :3].all()
    assert not columns[:, 3:].any()
