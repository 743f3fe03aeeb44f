import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import whence
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts, select_samples
from whence import Explainer, WhenceError
from whence.methods import vit_cx
from whence.methods.shared.inputs import pixels_to_units
from whence.tracing import replicate

pytest.importorskip("sklearn")
hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
DEMO = Path(whence.__file__).parent / "demo"


def scale(one: np.ndarray) -> np.ndarray:
    return (one - one.min()) / (one.max() - one.min())


def make_masks(features: Tensor, grid: tuple[int, int], size: tuple[int, int], distance: float):
    """Masks from the features of an image's patches; clusters found by SciPy."""
    maps = []
    for channel in features.T:
        large = F.interpolate(channel.reshape(1, 1, *grid), size, mode="bilinear")[0, 0].numpy()
        maps.append(scale(large).reshape(-1))
    tree = hierarchy.linkage(np.stack(maps), "complete", "cosine")
    labels = hierarchy.fcluster(tree, distance, "distance")
    members = [
        [m for m, at in zip(maps, labels, strict=True) if at == one]
        for one in dict.fromkeys(labels)
    ]
    return [scale(sum(cluster)).reshape(size) for cluster in members]


def compute_by_formula(model, pixels: Tensor, masks: list[np.ndarray], noise: float, seed: int):
    """Saliency of each class at each pixel of one image, (classes, height, width)."""
    source = torch.Generator().manual_seed(seed)

    def probabilities(image: Tensor) -> np.ndarray:
        with torch.no_grad():
            logits = model(image[None])
        return getattr(logits, "logits", logits).softmax(1)[0].numpy()

    total, covered = 0, sum(masks)
    for mask in masks:
        mask_ = torch.from_numpy(mask)
        added = noise * torch.randn(pixels.shape, generator=source).double() * (1 - mask_)
        score = probabilities(pixels * mask_ + added) - probabilities(pixels + added)
        score += probabilities(pixels)
        total = total + score[:, None, None] * (mask / covered) / len(masks)
    return torch.from_numpy(total)


def sum_over_patches(saliency: Tensor, grid: tuple[int, int]) -> Tensor:
    """Sums over patches, less the lowest."""
    rows, columns = (n // g for n, g in zip(saliency.shape[1:], grid, strict=True))
    sums = torch.stack(
        [
            saliency[:, r * rows : (r + 1) * rows, c * columns : (c + 1) * columns].sum((1, 2))
            for r in range(grid[0])
            for c in range(grid[1])
        ],
        1,
    )
    return sums - sums.min(1, keepdim=True).values


def record_attention_input(model, pixels: Tensor, layer: int) -> Tensor:
    """What the attention of a layer reads, (batch, tokens, width)."""
    kept = []
    plain = replicate(model)
    plain.blocks[layer].norm1.register_forward_hook(lambda _m, _a, output: kept.append(output))
    with torch.no_grad():
        plain(pixels)
    return kept[0]


@pytest.mark.parametrize(
    ("name", "layer", "distance"),
    [
        ("hand-written", -1, 0.1),
        ("hand-written", 1, 0.2),
        ("timm-vit-rectangle-fused", -1, 0.25),
        ("timm-vit-average-unfused", -1, 0.25),
        ("timm-vit-registers-fused", -2, 0.2),
    ],
)
def test_it_follows_the_formula(name, layer, distance):
    case = CASES[name]
    model, pixels = build_model(case).double(), case.inputs().double()[:2]
    features = record_attention_input(model, pixels, layer)[:, case.prefix :]
    result = Explainer(model).explain(
        pixels, classes=[4, 1], method="vit_cx", layer=layer, distance=distance, noise=0.3, seed=5
    )
    for n, one in enumerate(pixels):
        masks = make_masks(features[n], case.grid, tuple(pixels.shape[-2:]), distance)
        assert 1 < len(masks) < features.shape[-1]
        saliency = compute_by_formula(model, one, masks, 0.3, 5)[[4, 1]]
        expected = sum_over_patches(saliency, case.grid)
        assert expected.max() > 1e-5
        assert torch.allclose(result.scores[n], expected, rtol=0, atol=1e-8 * expected.max())


@pytest.mark.parametrize(
    "name", ["ViTForImageClassification-sdpa", "BeitForImageClassification-eager"]
)
def test_it_does_not_depend_on_the_batch_or_on_memory(name):
    case = CASES[name]
    explainer, inputs = (
        Explainer(build_model(case).double()),
        {"pixel_values": case.inputs()["pixel_values"].double()},
    )
    together = explainer.explain(inputs, target=1, method="vit_cx", distance=0.2)
    assert together.scores.max() > 0
    for n in range(3):
        one = select_samples(inputs, slice(n, n + 1))
        # So little memory that rows go one by one.
        alone = explainer.explain(one, target=1, method="vit_cx", distance=0.2, memory=1e-9)
        assert torch.allclose(alone.scores[0], together.scores[n], rtol=1e-6, atol=1e-12)


def test_random_numbers_come_from_the_seed_alone():
    explainer, pixels = Explainer(HandWrittenViT()), make_images(32, 32)
    state = torch.random.get_rng_state()
    first, second = (explainer.explain(pixels, method="vit_cx") for _ in range(2))
    other = explainer.explain(pixels, method="vit_cx", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.scores, second.scores)
    assert not torch.allclose(first.scores, other.scores)
    quiet = [explainer.explain(pixels, method="vit_cx", noise=0, seed=s).scores for s in (0, 1)]
    assert torch.equal(*quiet)


def test_several_classes_are_as_each_alone():
    explainer, pixels = Explainer(HandWrittenViT().double()), make_images(32, 32).double()
    several = explainer.explain(pixels, classes=[3, 0], method="vit_cx")
    for n, target in enumerate((3, 0)):
        one = explainer.explain(pixels, target=target, method="vit_cx")
        assert torch.allclose(several.scores[:, n], one.scores, atol=1e-12)
    assert not torch.allclose(several.scores[:, 0], several.scores[:, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": -0.1}, r"distance=-0.1 must be a number from 0 upwards"),
        ({"noise": float("nan")}, r"noise=nan must be a number from 0 upwards"),
        ({"noise": "loud"}, r"'noise' of method 'vit_cx' must be a number, not 'loud'"),
        ({"layer": 3}, r"layer=3 does not exist: the model has 3 attention layers, 0 to 2"),
        ({"layer": -4}, r"layer=-4 does not exist"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="vit_cx", **options)


def test_text_is_refused():
    with pytest.raises(WhenceError, match=r"'vit_cx' explains images only"):
        Explainer(build_model(CASES["Bert-sdpa"])).explain(make_texts(), method="vit_cx")


def test_a_logit_that_nothing_moves_and_features_that_are_all_alike_give_zeros():
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    still = Explainer(model).explain(make_images(32, 32), classes=[0, 1], method="vit_cx")
    assert torch.equal(still.scores, torch.zeros(3, 2, 16))
    model = HandWrittenViT()
    with torch.no_grad():
        model.positions.copy_(model.positions[:1].expand_as(model.positions))
    blank = Explainer(model).explain(torch.zeros(2, 3, 32, 32), method="vit_cx", layer=0)
    assert torch.equal(blank.scores, torch.zeros(2, 16))


# A real model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pets():
    transformers = pytest.importorskip("transformers")
    return transformers.ViTForImageClassification.from_pretrained(DEMO / "pets").float().eval()


def to_pixels(image) -> Tensor:
    array = torch.from_numpy(np.array(image.convert("RGB").resize((160, 160))))
    return (array.permute(2, 0, 1).float() / 255 - 0.5) / 0.5


def measure_drop(pets, pixels: Tensor, before: Tensor, scores: Tensor) -> float:
    """How much a probability falls, on average, as the top 20, 50 and 70 % of patches go."""
    drops = []
    for share in (0.2, 0.5, 0.7):
        top = scores.topk(int(share * 256), 1).indices
        kept = torch.ones(len(pixels), 256).scatter_(1, top, 0).reshape(-1, 1, 16, 16)
        with torch.no_grad():
            logits = pets(pixel_values=pixels * F.interpolate(kept, size=(160, 160))).logits
        after = logits.softmax(1).gather(1, before.argmax(1, keepdim=True))[:, 0]
        drops.append((before.amax(1) - after).mean())
    return float(torch.stack(drops).mean())


def compare_with_random(pets, pixels: Tensor) -> tuple[float, float]:
    """Drops of the probability without the patches that the method finds, and without others."""
    result = Explainer(pets).explain({"pixel_values": pixels}, method="vit_cx")
    before = result.logits.softmax(1)
    chance = [
        torch.rand(result.scores.shape, generator=torch.Generator().manual_seed(seed))
        for seed in range(10)
    ]
    by_chance = [measure_drop(pets, pixels, before, scores) for scores in chance]
    return measure_drop(pets, pixels, before, result.scores), sum(by_chance) / 10


@pytest.mark.slow
def test_top_patches_matter_more_than_random_ones(pets):
    photo = pytest.importorskip("PIL.Image").open(DEMO / "cat.jpg")
    pixels = torch.stack([to_pixels(photo), to_pixels(photo.crop((75, 0, 375, 300)))])
    found, by_chance = compare_with_random(pets, pixels)
    assert found > 1.2 * by_chance
    assert found > 0.05


@pytest.mark.slow
def test_top_patches_of_many_photos_matter_more_than_random_ones(data, pets):
    pillow = pytest.importorskip("PIL.Image")
    names = sorted(os.listdir(data / "pets160" / "images"))[::400][:12]
    photos = [to_pixels(pillow.open(data / "pets160" / "images" / name)) for name in names]
    found, by_chance = compare_with_random(pets, torch.stack(photos))
    assert found > 2 * by_chance


def test_there_is_no_map_of_pixels_for_each_class(monkeypatch):
    case, counts = CASES["timm-vit-fused"], []

    def count_maps(evidence, scores):
        counts.append(scores.numel() // (32 * 32))
        return pixels_to_units(evidence, scores)

    monkeypatch.setattr(vit_cx, "pixels_to_units", count_maps)
    result = Explainer(build_model(case)).explain(
        case.inputs(), classes=5, method="vit_cx", distance=2
    )
    assert result.scores.shape[:2] == (3, 5)
    assert counts == [1, 1, 1]  # of one mask each
