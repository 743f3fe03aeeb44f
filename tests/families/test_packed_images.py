"""Prompts with two images or none, and images of several sizes, in one batch."""

import itertools

import pytest
import torch

from tests.families import vision_language as models
from tests.families.vision_language import IMAGE
from whence import Explainer, Explanation, WhenceError, targets
from whence.engine import batching

BOTH = ["input_ids", "pixel_values"]
FAST = [("llava", "whence"), ("qwen2", "input_x_gradient"), ("qwen2_5", "gae")]
METHODS = ["rollout", "whence", "tiba", "gae", "input_x_gradient", "lrp", "occlusion"]


def build_llava():
    """One image, two images and none."""
    model, _ = models.build_llava()
    images = models.make_images((4, 4), (4, 4), (4, 4))
    parts = [images[:1], images[1:], []]
    batch = models.make_prompts([[16], [16, 16], []], pixel_values=torch.stack(images))
    alone = [
        models.make_prompts(
            [[16] * len(some)], **({"pixel_values": torch.stack(some)} if some else {})
        )
        for some in parts
    ]
    return model, parts, batch, alone


def build_qwen(name):
    """An image, two smaller ones and none, as rows of patches."""
    model = models.build_qwen() if name == "qwen2" else models.build_qwen2_5()
    images = models.make_images((4, 6), (4, 4), (2, 4))
    parts = [images[:1], images[1:], []]
    batch = models.make_prompts([[6], [4, 2], []], **models.flatten_images(images))
    alone = [
        models.make_prompts([counts], **(models.flatten_images(some) if some else {}))
        for counts, some in zip([[6], [4, 2], []], parts, strict=True)
    ]
    for inputs in (batch, *alone):
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    return model, parts, batch, alone


BUILD = {"llava": build_llava, "qwen2": build_qwen, "qwen2_5": build_qwen}


CASES = [
    pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow])
    for case in itertools.product(BUILD, METHODS)
]


@pytest.mark.parametrize(("name", "method"), CASES)
@pytest.mark.filterwarnings("error::whence.WhenceWarning")
def test_each_prompt_is_explained_as_if_it_were_alone(name, method):
    model, parts, batch, alone = BUILD[name](*([] if name == "llava" else [name]))
    explainer = Explainer(model)
    target = targets.token(token=9)
    whole = explainer.explain(batch, target, of=BOTH, method=method)
    for sample, (images, inputs) in enumerate(zip(parts, alone, strict=True)):
        # The first word tells the prompts of the batch apart.
        inputs["input_ids"][0, [0, -1]] = torch.tensor([3 + sample, 7 + sample])
        of = BOTH if images else ["input_ids"]
        one = explainer.explain(inputs, target, of=of, method=method)
        count = inputs["input_ids"].shape[1]
        assert torch.allclose(whole["input_ids"].scores[sample, :count], one["input_ids"].scores[0])
        maps = whole["pixel_values"].images(sample)
        assert [part.image_size for part in maps.values()] == [x.shape[1:] for x in images]
        found = one["pixel_values"].images() if images else {}
        assert list(maps) == list(found) == [f"image {n + 1}" for n in range(len(images))]
        for part, same in zip(maps.values(), found.values(), strict=True):
            assert part.grid == same.grid
            assert torch.allclose(part.scores, same.scores)
            assert part.scores.any()


def test_patches_are_put_where_they_are_in_the_image():
    """Against gradients at the images, from which a plain loop makes the rows of patches."""
    model = models.build_qwen()
    images = [image.requires_grad_() for image in models.make_images((4, 6), (2, 4))]
    inputs = models.make_prompts([[6, 2]], **models.flatten_images(images))
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    gradients = torch.autograd.grad(model(**inputs).logits[0, -1, 9], images)
    result = Explainer(model).explain(
        {name: value.detach() for name, value in inputs.items()},
        targets.token(token=9),
        of="pixel_values",
        method="input_x_gradient",
    )
    for image, gradient, part in zip(images, gradients, result.images().values(), strict=True):
        rows, columns = part.grid
        squares = (image * gradient).detach().sum(0).reshape(rows, 8, columns, 8).sum((1, 3))
        assert torch.allclose(part.scores, squares.flatten()[None])


def test_chunks_of_a_batch_have_one_grid(monkeypatch):
    model = models.build_qwen()
    inputs = models.make_prompts([[6], [2], [2]])
    inputs |= models.flatten_images(models.make_images((4, 6), (2, 4), (4, 2)))
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    explain = {"target": targets.token(token=9), "of": "pixel_values", "method": "gae"}
    whole = Explainer(model).explain(inputs, **explain)
    chunks, run = [], batching.run_eagerly
    monkeypatch.setattr(
        batching, "run_eagerly", lambda chunk, *a: chunks.append(chunk.batch) or run(chunk, *a)
    )
    in_chunks = Explainer(model).explain(inputs, **explain, memory=2e-4)
    assert chunks[-3:] == [1, 1, 1]
    assert in_chunks.grid == whole.grid == (2, 3)
    assert torch.allclose(in_chunks.scores, whole.scores)
    assert [next(iter(whole.images(n).values())).grid for n in range(3)] == [(2, 3), (1, 2), (2, 1)]


def test_a_saved_result_knows_its_images(tmp_path):
    model, parts, batch, _ = build_llava()
    result = Explainer(model).explain(batch, targets.token(), of="pixel_values", method="gae")
    result.save(tmp_path / "a.safetensors")
    loaded = Explanation.load(tmp_path / "a.safetensors")
    assert [len(loaded.images(n)) for n in range(3)] == list(map(len, parts)) == [1, 2, 0]
    for name, part in loaded.images(1).items():
        assert torch.equal(part.heatmap(), result.images(1)[name].heatmap())
    assert loaded[1].image_sizes == [[(16, 16), (16, 16)]]


def test_patches_that_are_not_of_these_images_are_refused():
    model = models.build_qwen()
    inputs = models.make_prompts([[6]], **models.flatten_images(models.make_images((4, 6))))
    inputs["image_grid_thw"] = torch.tensor([[1, 4, 8]])
    with pytest.raises(WhenceError, match=r"patches .* processor"):
        Explainer(model).explain(inputs, targets.token(), of="pixel_values")


def test_a_text_has_no_images():
    model, inputs = models.build_llava()
    result = Explainer(model).explain(inputs, targets.token(), of="input_ids", method="gae")
    with pytest.raises(WhenceError, match="not of images"):
        result.images()


def test_images_of_a_prompt_are_drawn_as_images(tmp_path):
    model, inputs = models.build_idefics3()
    result = Explainer(model).explain(inputs, targets.token(), of="pixel_values", method="gae")
    assert result.axes == ("image", "row", "column")
    assert "1 prompt" in repr(result)
    result.save(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "Images (contrast stretched)" in drawn
    assert "images from left to right" in drawn
    (first, second) = result.images().values()
    assert torch.equal(torch.cat([first.scores, second.scores], 1), result.scores)


@pytest.mark.parametrize("method", ["occlusion", "value_zeroing"])
def test_words_beside_packed_images_are_run_in_rows(method):
    model = models.build_qwen()
    pictures = models.flatten_images(models.make_images((4, 6), (2, 4)))
    batch = models.make_prompts([[6], [2]], **pictures)
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    explainer, target = Explainer(model), targets.token()
    words = explainer.explain(batch, target, of="input_ids", method=method)
    both = explainer.explain(batch, target, of=BOTH, method=method)
    assert torch.allclose(words.scores, both["input_ids"].scores)
    assert words.scores.abs().sum() > 0
