import pytest
import torch

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
OPTIONS = {"method": "rise", "masks": 30, "seed": 4}


def compute_bilinear_weights(side, size):
    """What each of some numbers in a line gets from each of some cells, bilinearly."""
    weights = torch.zeros(size, side, dtype=torch.float64)
    for k in range(size):
        # Centres of cells and numbers; the outermost cells are held.
        at = min(max((k + 0.5) * side / size - 0.5, 0), side - 1)
        before = min(int(at), side - 2)
        weights[k, before], weights[k, before + 1] = 1 - (at - before), at - before
    return weights


def enlarge(cells, size):
    return (
        compute_bilinear_weights(len(cells), size[0])
        @ cells
        @ compute_bilinear_weights(len(cells), size[1]).T
    )


def make_masks(height, width, side, keep, count=30):
    generator = torch.Generator().manual_seed(4)
    cells = (torch.rand(count, 1, side, side, generator=generator) < keep).double()
    high, wide = -(-height // side), -(-width // side)
    down = torch.randint(high, (count,), generator=generator).tolist()
    right = torch.randint(wide, (count,), generator=generator).tolist()
    for k in range(count):
        large = enlarge(cells[k, 0], ((side + 1) * high, (side + 1) * wide))
        yield large[down[k] : down[k] + height, right[k] : right[k] + width]


@pytest.mark.parametrize(
    ("options", "keep", "side", "baseline", "output"),
    [
        ({}, 0.5, 7, 0.0, "probability"),
        ({"keep": 0.3, "resolution": 3, "baseline": 0.4, "output": "logit"}, 0.3, 3, 0.4, "logit"),
    ],
)
@pytest.mark.parametrize("name", IMAGES)
def test_image(name, options, keep, side, baseline, output):
    plain = build_image_model(name)
    result = Explainer(plain.model).explain(plain.batch, classes=CLASSES, **OPTIONS, **options)
    expected = 0
    for mask in make_masks(*plain.inputs.shape[-2:], side, keep):
        logits = plain.forward(plain.inputs * mask + baseline * (1 - mask))
        outputs = logits.softmax(1) if output == "probability" else logits
        # The score of a pixel, of which a patch has the mean.
        of_pixels = outputs[:, CLASSES, None, None] * mask
        expected = expected + split_patches(of_pixels).mean(-1) / (30 * keep)
    assert relative_error(result.scores, expected) < 1e-9


def test_text():
    plain = build_text_model()
    result = Explainer(plain.model).explain(
        plain.batch, classes=CLASSES, keep=0.7, baseline=0.1, **OPTIONS
    )
    generator = torch.Generator().manual_seed(4)
    shown = [torch.rand(30, generator=generator) < 0.7 for _ in range(10)]
    for index, length in enumerate(plain.batch["attention_mask"].sum(1).tolist()):
        embeddings, arguments = plain.select(index)
        expected = torch.zeros(2, 10).double()
        for k in range(30):
            changed = embeddings.clone()
            for token in range(length):
                if not shown[token][k]:
                    changed[0, token] = 0.1
            output = plain.forward(changed, *arguments).softmax(1)[0, CLASSES]
            for token in range(length):
                expected[:, token] += output * shown[token][k] / (30 * 0.7)
        assert relative_error(result.scores[index], expected) < 1e-9


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


def test_the_size_of_chunks_does_not_matter():
    plain = build_image_model(IMAGES[0])
    explainer = Explainer(plain.model)
    whole = explainer.explain(plain.batch, 1, **OPTIONS).scores
    for memory in (1e-9, 0.003, 0.005):
        narrow = explainer.explain(plain.batch, 1, memory=memory, **OPTIONS).scores
        assert relative_error(narrow, whole) < 1e-9


def test_cells_are_visible_as_often_as_asked():
    # Of a model that always says the same, only how often a patch is visible is left.
    model = build_constant_model()
    with torch.no_grad():
        model.head.bias.fill_(1)
    options = {**OPTIONS, "masks": 2000, "keep": 0.3, "output": "logit"}
    scores = Explainer(model).explain(make_images(32, 32)[:1], 0, **options).scores
    assert relative_error(scores, torch.ones(1, 16)) < 0.06
    assert relative_error(scores, torch.ones(1, 16)) > 0.001


def test_the_random_state_stays_and_seeds_matter():
    plain = build_image_model(IMAGES[0])
    explainer = Explainer(plain.model)
    before = torch.get_rng_state()
    scores = explainer.explain(plain.batch, 1, **OPTIONS).scores
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(explainer.explain(plain.batch, 1, **OPTIONS).scores, scores)
    other = explainer.explain(plain.batch, 1, **{**OPTIONS, "seed": 5}).scores
    assert relative_error(other, scores) > 0.01


def test_degenerate_input_is_finite():
    plain = build_image_model(IMAGES[0])
    empty = Explainer(plain.model).explain(plain.inputs * 0, classes=CLASSES, **OPTIONS)
    # Masks hide nothing of an image that is black already.
    shown = sum(split_patches(mask).mean(-1) for mask in make_masks(32, 32, 7, 0.5)) / 15
    probabilities = plain.forward(plain.inputs * 0).softmax(1)[:, CLASSES, None]
    assert relative_error(empty.scores, probabilities * shown) < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masks": 0}, "masks=0 must be at least 1"),
        ({"keep": 0}, "keep=0 must be above 0 and at most 1"),
        ({"keep": 1.5}, "keep=1.5 must be above 0 and at most 1"),
        ({"resolution": 0}, "resolution=0 must be at least 1"),
        ({"output": "loss"}, "'output' .* must be 'logit' or 'probability', not 'loss'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(build_constant_model()).explain(make_images(32, 32), **{**OPTIONS, **options})
