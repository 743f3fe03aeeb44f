"""The matrices of the paper, from maps and gradients of the models themselves."""

import pytest
import torch

from tests.methods.gae_formula import multiply_layers, weigh_maps
from tests.paths import PATHS, explain_on
from tests.real import load_real_vit, read_photo
from tests.test_golden import CLASS_TOKEN, compute_error, read_golden
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError


@pytest.mark.parametrize("path", PATHS)
def test_the_authors_results_on_real_photos(data, path):
    authors = read_golden("real_vit")
    pixels = torch.stack([read_photo(data, file) for file in authors["files"]])
    ranks = ("rank0", "rank1")
    classes = torch.tensor(
        [[int(authors[f"{i}/{rank}/target"]) for rank in ranks] for i in range(len(pixels))]
    )
    model = load_real_vit(data).double()
    result = explain_on(path, model, pixels, classes=classes, method="gae")
    for i, scores in enumerate(result.scores):
        for column, rank in enumerate(ranks):
            assert compute_error(scores[column], authors[f"{i}/{rank}/gae"]) < 1e-6


@pytest.mark.parametrize("name", ["hand-written", "timm-vit-average-fused"])
def test_images(name):
    case = CASES[name]
    model, pixels = build_model(case).double(), case.inputs().double()
    result = Explainer(model).explain(pixels, classes=[1, 4], method="gae")
    for i in range(3):
        logits, maps = case.attention(model, pixels[i : i + 1])
        for column, target in enumerate((1, 4)):
            relevancy = multiply_layers(weigh_maps(logits[0, target], maps))
            relevancy = relevancy - torch.eye(len(relevancy), dtype=torch.float64)
            expected = relevancy[list(case.pooled)].mean(0)[case.prefix :]
            assert torch.allclose(result.scores[i, column], expected, rtol=1e-8)


def test_padded_text():
    case = CASES["Bert-sdpa"]
    model, inputs = build_model(case).double(), make_texts()
    result = Explainer(model, layout=CLASS_TOKEN).explain(inputs, target=1, method="gae")
    for i, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = {key: value[i : i + 1, :length] for key, value in inputs.items()}
        logits, maps = case.attention(model, alone)
        expected = multiply_layers(weigh_maps(logits[0, 1], maps))[0]
        assert torch.allclose(result.scores[i, 1:length], expected[1:], rtol=1e-8)
        assert result.scores[i, 0] == result.scores[i, 1:length].min()
        assert not result.scores[i, length:].any()


@pytest.mark.parametrize(("start", "first"), [(1, 1), (-1, 2)])
def test_layers_before_the_first_are_left_out(start, first):
    case = CASES["hand-written"]
    model, pixels = build_model(case).double(), case.inputs().double()[:1]
    logits, maps = case.attention(model, pixels)
    expected = multiply_layers(weigh_maps(logits[0, 2], maps)[first:])
    scores = Explainer(model).explain(pixels, target=2, method="gae", start_layer=start).scores
    assert torch.allclose(scores[0], expected[0, case.prefix :], rtol=1e-8)


def test_without_aggregation_maps_are_multiplied_alone():
    case = CASES["hand-written"]
    model, pixels = build_model(case).double(), case.inputs().double()[:1]
    logits, maps = case.attention(model, pixels)
    first, second, third = weigh_maps(logits[0, 2], maps)
    scores = Explainer(model).explain(pixels, target=2, method="gae", aggregate=False).scores
    assert torch.allclose(scores[0], (third @ second @ first)[0, case.prefix :], rtol=1e-8)


def test_windows_are_not_without_aggregation():
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    model = transformers.SwinForImageClassification(config).eval()
    pixels = torch.randn(1, 3, 32, 32)
    assert Explainer(model).explain(pixels, method="gae").scores.any()
    with pytest.raises(WhenceError, match="aggregate=False is not possible where tokens"):
        Explainer(model).explain(pixels, method="gae", aggregate=False)


def test_balanced_gradients_give_other_scores():
    explainer, pixels = Explainer(HandWrittenViT()), make_images(32, 32)
    plain = explainer.explain(pixels, method="gae").scores
    assert not torch.allclose(
        plain, explainer.explain(pixels, method="gae", gradients="balanced").scores
    )


def test_a_constant_logit_gives_zeros():
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    scores = Explainer(model).explain(make_images(32, 32), classes=[0, 1], method="gae").scores
    assert torch.equal(scores, torch.zeros(3, 2, 16))


def test_an_option_that_is_none():
    with pytest.raises(WhenceError, match="must be 'plain' or 'balanced'"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="gae", gradients="other")
