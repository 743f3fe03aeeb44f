"""Language models that read images: words and the image's map from one call."""

import itertools

import pytest
import torch
from torch import Tensor

from tests.families import vision_language as models
from tests.families.models import copy_eager
from tests.families.vision_language import CASES, IMAGE, build, build_llava, embed_tokens
from tests.families.vision_language import silence_tower as silence
from whence import Explainer, targets

BOTH = ["input_ids", "pixel_values"]


def roll_out(maps: list[Tensor], position: int) -> Tensor:
    """Rollout by its definition: the row of a position of the product of all layers."""
    product = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    for one in maps:
        added = one[0].mean(0) + torch.eye(len(product), dtype=one.dtype)
        product = added / added.sum(-1, keepdim=True) @ product
    return product[position]


@pytest.mark.parametrize("name", CASES)
def test_each_image_token_stands_for_its_part_of_the_image(name):
    model, inputs = build(name)
    image = Explainer(model).explain(inputs, targets.token(), of="pixel_values", method="rollout")
    expected = roll_out(copy_eager(model)(**inputs, output_attentions=True).attentions, -1)
    silence(model)
    plain, pixels = embed_tokens(model, inputs), inputs["pixel_values"]
    rows, columns = (16 // count for count in image.grid[-2:])
    cells = itertools.product(*map(range, image.grid))
    for (*crop, row, column), score in zip(cells, image.scores[0].tolist(), strict=True):
        changed = pixels.clone()
        top, left = row * rows, column * columns
        changed[(0, *crop)][:, top : top + rows, left : left + columns] += 1
        moved = embed_tokens(model, {**inputs, "pixel_values": changed})
        (token,) = (moved != plain).any(-1)[0].nonzero()[:, 0].tolist()
        assert expected[token].item() == pytest.approx(score, rel=1e-6)
        assert inputs["input_ids"][0, token] == IMAGE


def test_rollout_stops_at_the_image_tokens():
    model, inputs = build_llava()
    result = Explainer(model).explain(inputs, targets.token(), of=BOTH, method="rollout")
    maps = copy_eager(model)(**inputs, output_attentions=True).attentions
    expected = roll_out(maps, -1)
    assert torch.allclose(result["pixel_values"].scores[0], expected[2:18])
    # An image token is no word: what stands there is the image.
    expected[2:18] = 0
    assert torch.allclose(result["input_ids"].scores[0], expected)
    alone = Explainer(model).explain(inputs, targets.token(), of="pixel_values", method="rollout")
    assert torch.equal(alone.scores, result["pixel_values"].scores)


def test_input_x_gradient_goes_down_to_pixels_and_embeddings():
    model, inputs = build_llava()
    pixels = inputs["pixel_values"].clone().requires_grad_()
    words = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    hook = model.get_input_embeddings().register_forward_hook(lambda *_: words)
    logit = model(**{**inputs, "pixel_values": pixels}).logits[0, -1, 9]
    hook.remove()
    of_words, of_pixels = torch.autograd.grad(logit, (words, pixels))
    result = Explainer(model).explain(
        inputs, targets.token(token=9), of=BOTH, method="input_x_gradient"
    )
    products = (of_pixels * pixels).sum(1).reshape(1, 4, 4, 4, 4).sum((2, 4))
    assert torch.allclose(result["pixel_values"].scores, products.flatten(1))
    assert torch.allclose(result["input_ids"].scores, (of_words * words).sum(-1))
    # What stands at image tokens is the image, not the words that keep its place.
    assert not result["input_ids"].scores[inputs["input_ids"] == IMAGE].any()


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "attention_norm", "lrp"])
def test_a_sample_is_explained_alike_in_any_batch(method):
    model, inputs = build_llava(images=2)
    inputs["input_ids"][1, -3:] = torch.tensor([8, 9, 10])
    explainer = Explainer(model)
    whole = explainer.explain(inputs, targets.token(token=9), of=BOTH, method=method)
    for sample in range(2):
        alone = explainer.explain(
            {name: value[sample : sample + 1] for name, value in inputs.items()},
            targets.token(token=9),
            of=BOTH,
            method=method,
        )
        for name in BOTH:
            assert torch.allclose(whole[name].scores[sample], alone[name].scores[0])
    assert whole["pixel_values"].heatmap().shape == (2, 16, 16)


@pytest.mark.parametrize("method", ["gae", "input_x_gradient"])
def test_a_video_has_frames(method):
    ids = models.make_ids([3, 61], [59] * 12, [62, 5, 6])
    kinds = {"mm_token_type_ids": 2 * (ids == 59).int()}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **kinds}
    inputs["pixel_values_videos"] = models.make_pixels(48, 96)
    inputs["video_grid_thw"] = torch.tensor([[2, 4, 6]])
    result = Explainer(models.build_qwen()).explain(
        inputs, targets.token(token=9), of="pixel_values_videos", method=method
    )
    assert (result.grid, result.axes) == ((2, 2, 3), ("frame", "row", "column"))
    assert result.media[0].frames.shape == (4, 16, 24, 3)


def test_words_that_attend_to_the_tower_lead_to_its_patches():
    model, inputs = models.build_mllama()
    explain, target = Explainer(model).explain, targets.token(token=9)
    alone = explain(inputs, target, of="pixel_values", method="gae")
    assert alone.grid == (2, 4, 4)  # two tiles
    both = explain(inputs, target, of=BOTH, method="gae")
    assert torch.allclose(both["pixel_values"].scores, alone.scores)
    assert both["input_ids"].scores.any()


@pytest.mark.parametrize("name", ["gemma3", "paligemma"])
def test_further_passes_change_the_operations_that_were_recorded(name):
    """The words are recorded beside the image: these models scale their embeddings."""
    model, inputs = build(name)
    explainer, method = Explainer(model), "value_zeroing"
    alone = explainer.explain(inputs, targets.token(), of="pixel_values", method=method)
    beside = explainer.explain(inputs, targets.token(), of=BOTH, method=method)
    assert torch.allclose(alone.scores, beside["pixel_values"].scores)
    assert alone.scores.sum() > 0
