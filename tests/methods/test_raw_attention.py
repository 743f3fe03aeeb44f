import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.real import load_real_vit, read_photo
from tests.test_golden import (
    CLASS_TOKEN,
    TAGS,
    compute_error,
    list_targets,
    load_small_model,
    read_golden,
)
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError


@pytest.mark.parametrize("name", ["vit_a", "vit_b", "bert_a", "bert_b"])
def test_the_authors_results(name):
    model, inputs = load_small_model(name)
    result = Explainer(model).explain(inputs, classes=list_targets(name), method="raw_attention")
    for i, scores in enumerate(result.scores):
        for column, tag in enumerate(TAGS):
            theirs = read_golden(name)[f"{i}/{tag}/raw_attention_last_layer"]
            if name.startswith("vit"):  # only the first patch was kept
                assert float(scores[column, 0]) == pytest.approx(float(theirs), rel=1e-12)
            else:  # the class token is set to 0
                assert compute_error(scores[column, 1:], theirs[1:]) < 1e-12


def test_the_authors_results_on_real_photos(data):
    authors = read_golden("real_vit")
    pixels = torch.stack([read_photo(data, file) for file in authors["files"]])
    result = Explainer(load_real_vit(data).double()).explain(pixels, method="raw_attention")
    for i, scores in enumerate(result.scores):
        assert compute_error(scores, authors[f"{i}/rank0/raw_attention_last_layer"]) < 1e-6


@pytest.mark.parametrize(("layer", "index"), [(-1, 2), (0, 0), (-2, 1)])
@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "timm-vit-average-fused"])
def test_the_librarys_own_attention(name, layer, index):
    case = CASES[name]
    model, inputs = build_model(case).double(), case.inputs()
    inputs = (
        inputs.double()
        if isinstance(inputs, torch.Tensor)
        else {k: v.double() for k, v in inputs.items()}
    )
    result = Explainer(model).explain(inputs, method="raw_attention", layer=layer)
    with torch.no_grad():
        maps = case.attention(model, inputs)[1]
    rows = maps[index].mean(1)[:, list(case.pooled)].mean(1)
    assert torch.allclose(result.scores, rows[:, case.prefix :], rtol=1e-10)


def test_padded_text():
    case = CASES["Bert-sdpa"]
    model, inputs = build_model(case).double(), make_texts()
    result = Explainer(model, layout=CLASS_TOKEN).explain(
        inputs, classes=[0, 2], method="raw_attention"
    )
    with torch.no_grad():
        rows = case.attention(model, inputs)[1][-1].mean(1)[:, 0]
    assert torch.equal(result.scores[:, 0], result.scores[:, 1])
    assert torch.allclose(result.scores[:, 0, 1:], rows[:, 1:], rtol=1e-10)
    for scores, mask in zip(result.scores[:, 0], inputs["attention_mask"], strict=True):
        real = scores[: int(mask.sum())]
        assert real[0] == real[1:].min() > 0
        assert not scores[len(real) :].any()


def test_pooling_by_attention():
    class Pools(HandWrittenViT):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.randn(1, 1, 1, 32))

        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            x = self.blocks[0](self.embed(x.flatten(1, 2)))
            query = self.query.expand(len(x), -1, -1, -1)
            return self.head(F.scaled_dot_product_attention(query, x[:, None], x[:, None])[:, 0, 0])

    explainer = Explainer(Pools().double())
    pixels = make_images(32, 32).double()
    result = explainer.explain(pixels, method="raw_attention", keep_evidence=True)
    assert torch.equal(result.scores, result.evidence.attention[-1][:, 0, 0])
    with pytest.raises(WhenceError, match="is not from the tokens that the classifier reads"):
        explainer.explain(pixels, method="raw_attention", layer=0)


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_that_does_not_exist(layer):
    with pytest.raises(WhenceError, match=r"3 attention layers, 0 to 2, or -3 to -1"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="raw_attention", layer=layer
        )
