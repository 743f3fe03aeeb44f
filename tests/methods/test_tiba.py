import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.test_golden import CLASS_TOKEN
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError


def compute_by_formula(result, start: int, normalize_rows: bool, rows: list[int]) -> torch.Tensor:
    """The mean of some rows of C, the product of (I + mean_h max(gradient * relevance, 0))."""
    evidence = result.evidence
    identity = torch.eye(evidence.attention[0].shape[-1], dtype=torch.float64)
    joint = identity
    layers = list(zip(evidence.gradient, evidence.relevance, strict=True))
    for gradient, relevance in layers[start:]:
        layer = identity + (gradient * relevance).clamp(min=0).mean(1)
        joint = (layer / layer.sum(-1, keepdim=True) if normalize_rows else layer) @ joint
    return joint[:, rows].mean(1)


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("normalize_rows", [False, True])
def test_image_with_class_token(start, normalize_rows):
    model = HandWrittenViT().double()
    result = Explainer(model).explain(
        make_images(32, 32).double(),
        method="tiba",
        start_layer=start,
        normalize_rows=normalize_rows,
        keep_evidence=True,
    )
    joint = compute_by_formula(result, start, normalize_rows, [0])
    assert torch.allclose(result.scores, joint[:, 1:], rtol=1e-10)


def test_image_with_average_pooling():
    case = CASES["timm-vit-average-fused"]
    result = Explainer(build_model(case).double()).explain(
        case.inputs().double(), method="tiba", keep_evidence=True
    )
    joint = compute_by_formula(result, 0, False, list(range(16)))
    assert torch.allclose(result.scores, joint - 1 / 16, rtol=1e-6)


def test_the_pooled_token_of_a_text_gets_the_lowest_score():
    case = CASES["Bert-sdpa"]
    model = build_model(case).double()
    inputs = make_texts()
    explainer = Explainer(model, layout=CLASS_TOKEN)
    result = explainer.explain(inputs, method="tiba", keep_evidence=True)
    joint = compute_by_formula(result, 0, False, [0])
    real = inputs["attention_mask"].bool()
    assert torch.allclose(result.scores[:, 1:], joint[:, 1:] * real[:, 1:], rtol=1e-10)
    for i in range(3):
        assert result.scores[i, 0] == result.scores[i, 1:][real[i, 1:]].min()


def test_pooling_by_attention():
    class Pools(HandWrittenViT):
        """A learned query reads the tokens; no class token, no skip connection at the end."""

        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.randn(1, 1, 1, 32))

        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            x = self.embed(x.flatten(1, 2))
            for block in self.blocks:
                x = block(x)
            query = self.query.expand(len(x), -1, -1, -1)
            pooled = F.scaled_dot_product_attention(query, x[:, None], x[:, None])
            return self.head(pooled[:, 0, 0])

    result = Explainer(Pools().double()).explain(
        make_images(32, 32).double(), method="tiba", keep_evidence=True
    )
    assert result.grid == (4, 4)
    evidence = result.evidence
    last = (evidence.gradient[-1] * evidence.relevance[-1]).clamp(min=0).mean(1)
    identity = torch.eye(16, dtype=torch.float64)
    row = last
    for gradient, relevance in zip(
        evidence.gradient[-2::-1], evidence.relevance[-2::-1], strict=True
    ):
        row = row @ (identity + (gradient * relevance).clamp(min=0).mean(1))
    assert torch.allclose(result.scores, row[:, 0], rtol=1e-8)


def test_merged_tokens():
    """Two tokens are added to one: each has half of what goes to it."""

    class Merges(HandWrittenViT):
        def forward(self, image):
            x = image.reshape(len(image), 3, 4, 8, 4, 8).permute(0, 2, 4, 1, 3, 5).flatten(3)
            x = self.blocks[0](self.embed(x.flatten(1, 2)))
            return self.head(self.blocks[1](x[:, ::2] + x[:, 1::2])[:, 0])

    result = Explainer(Merges().double()).explain(
        make_images(32, 32).double(), method="tiba", keep_evidence=True
    )
    first, last = (
        (gradient * relevance).clamp(min=0).mean(1)
        for gradient, relevance in zip(
            result.evidence.gradient, result.evidence.relevance, strict=True
        )
    )
    row = torch.eye(8, dtype=torch.float64)[0] + last[:, 0]
    row = row.repeat_interleave(2, 1) / 2
    expected = row + (row[:, None] @ first)[:, 0]
    assert result.grid == (4, 4)
    assert torch.allclose(result.scores, expected, rtol=1e-8)


@pytest.mark.parametrize("start", [-1, 3])
def test_a_start_layer_that_does_not_exist(start):
    with pytest.raises(WhenceError, match=r"the model has 3 attention layers, 0 to 2"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="tiba", start_layer=start)


def test_a_constant_logit_gives_zeros():
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    result = Explainer(model).explain(make_images(32, 32), method="tiba", classes=[0, 1])
    assert torch.equal(result.scores, torch.zeros(3, 2, 16))
