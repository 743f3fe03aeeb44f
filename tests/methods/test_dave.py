"""DAVE against its formula: copies made pixel by pixel, and gradients by autograd."""

import itertools
import math
import statistics

import pytest
import torch
from torch import Tensor

from tests.families.modified_gradients import modify_gradients
from tests.methods.plain_models import (
    build_image_model,
    build_text_model,
    relative_error,
    split_patches,
)
from tests.zoo import HandWrittenViT
from whence import Explainer, WhenceError

OPTIONS = {"method": "dave", "samples": 5, "noise": 0.4, "seed": 3}
SHIFT, ANGLE, ZOOM = 0.1, 20.0, 0.1


def move_by_hand(image: Tensor, draws: list[float]) -> Tensor:
    """Turn, scale, shift and mirror an image; what comes from outside is zero."""
    turn, zoom, right, down, mirror = (2 * one - 1 for one in draws)
    angle, size = math.radians(ANGLE) * turn, 1 / (1 + ZOOM * zoom)
    _, height, width = image.shape
    weights = torch.zeros(height * width, height * width, dtype=torch.float64)
    for row, column in itertools.product(range(height), range(width)):
        # Distances from the centre, in pixels.
        x, y = column + 0.5 - width / 2, row + 0.5 - height / 2
        from_x = size * (math.cos(angle) * x - math.sin(angle) * y)
        from_x = (-from_x if mirror < 0 else from_x) + right * SHIFT * width + width / 2 - 0.5
        from_y = size * (math.sin(angle) * x + math.cos(angle) * y)
        from_y += down * SHIFT * height + height / 2 - 0.5
        for i, j in itertools.product((0, 1), (0, 1)):  # the four nearest pixels
            at_y, at_x = math.floor(from_y) + i, math.floor(from_x) + j
            if 0 <= at_y < height and 0 <= at_x < width:
                weight = (1 - abs(from_y - at_y)) * (1 - abs(from_x - at_x))
                weights[row * width + column, at_y * width + at_x] = weight
    return (image.flatten(1) @ weights.T).view_as(image)


def make_copies(image: Tensor) -> list[Tensor]:
    count = OPTIONS["samples"]
    generator = torch.Generator().manual_seed(OPTIONS["seed"])
    copies = []
    for number, seed in enumerate(torch.randint(2**62, (count,), generator=generator).tolist()):
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(5, generator=generator).double().tolist()
        noise = torch.randn(image.shape, generator=generator).double()
        level = OPTIONS["noise"] * number / (count - 1)
        moved = move_by_hand(image, draws)
        copies.append((1 - level) * moved + math.sqrt(1 - (1 - level) ** 2) * noise)
    return copies


def average_by_hand(products: Tensor) -> Tensor:
    """The mean of copies without those far from their median, number by number."""
    means = []
    for column in products.flatten(1).T.tolist():
        median = statistics.median(column)
        deviation = 1.4826 * statistics.median(abs(one - median) for one in column) + 1e-8
        kept = [one for one in column if abs(one - median) <= 2.5 * deviation]
        means.append(sum(kept) / len(kept))
    return torch.tensor(means, dtype=torch.float64).view_as(products[0])


def compute_by_hand(model, image: Tensor, target: int) -> Tensor:
    products = []
    leaf = image.clone().requires_grad_()
    for copy in make_copies(leaf):
        logit = model(copy[None])[0, target]
        (gradient,) = torch.autograd.grad(logit, leaf)
        products.append(image * gradient)
    pixels = average_by_hand(torch.stack(products)).sum(0).clamp(min=0)
    return split_patches(pixels).sum(-1)


def test_plain_gradients_of_a_rectangle():
    plain = build_image_model("timm-vit-rectangle-fused")
    images = plain.batch[:1]
    result = Explainer(plain.model).explain(images, 1, gradients="plain", **OPTIONS)
    expected = compute_by_hand(plain.model, images[0], 1)
    # Draws are in single precision, and so are the angles of copies.
    assert relative_error(result.scores[0], expected) < 1e-5


def test_balanced_gradients():
    torch.manual_seed(0)
    model = HandWrittenViT().double().requires_grad_(False)
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    result = Explainer(model).explain(images, 1, **OPTIONS)
    with modify_gradients(model, "balanced", tokens=17):
        expected = compute_by_hand(model, images[0], 1)
    assert relative_error(result.scores[0], expected) < 1e-5


def test_the_batch_and_the_memory_change_nothing():
    plain = build_image_model("timm-vit-fused")
    explainer = Explainer(plain.model)
    whole = explainer.explain(plain.batch, classes=[0, 2], **OPTIONS).scores
    parts = explainer.explain(plain.batch, classes=[0, 2], memory=1e-4, **OPTIONS).scores
    alone = explainer.explain(plain.batch[1:2], 2, **OPTIONS).scores
    assert relative_error(parts, whole) < 1e-9
    assert relative_error(alone[0], whole[1, 1]) < 1e-9
    other = explainer.explain(plain.batch, classes=[0, 2], **{**OPTIONS, "seed": 4}).scores
    assert relative_error(other, whole) > 1e-3


def test_a_copy_that_is_not_changed_is_input_times_gradient():
    plain = build_image_model("timm-vit-fused")
    still = {"samples": 1, "shift": 0.0, "angle": 0.0, "zoom": 0.0, "flip": False}
    explain = Explainer(plain.model).explain
    found = explain(plain.batch, 1, method="dave", gradients="plain", **still).scores
    leaf = plain.batch.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(plain.model(leaf)[:, 1].sum(), leaf)
    expected = split_patches((leaf * gradient).detach().sum(1).clamp(min=0)).sum(-1)
    assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples=0 must be at least 1"),
        ({"noise": 1.0}, "noise=1.0 must be at least 0 and below 1"),
        ({"shift": -0.1}, "shift=-0.1 must be at least 0"),
        ({"angle": -1.0}, "angle=-1.0 must not be negative"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(HandWrittenViT()).explain(torch.randn(1, 3, 32, 32), method="dave", **options)


def test_texts_are_refused():
    plain = build_text_model()
    with pytest.raises(WhenceError, match="'dave' explains images only"):
        Explainer(plain.model).explain(plain.batch, method="dave")
