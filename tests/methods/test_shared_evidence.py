import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.methods.plain_models import to_double
from tests.test_golden import CLASS_TOKEN
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, run_model
from whence import Explainer, WhenceError, methods


def compute_by_formula(hidden, gradients, maps, content, image: bool, sharing: float) -> Tensor:
    """The scores of one sample, token by token."""
    tokens = len(hidden[0])
    held = [
        sum(max(float(x[i] @ g[i]), 0.0) for x, g in zip(hidden, gradients, strict=True))
        for i in range(tokens)
    ]
    mean = sum(a.mean(0) for a in maps) / len(maps)
    scores = torch.zeros(tokens, dtype=torch.float64)
    for i in range(tokens):
        own = others = held[i] ** 0.5
        if content[i]:
            bonds = [float(mean[i, j] + mean[j, i]) if content[j] else 0.0 for j in range(tokens)]
            others = sum(b * h**0.5 for b, h in zip(bonds, held, strict=True)) / sum(bonds)
        score = (own + sharing * others) / (1 + sharing)
        scores[i] = score if image else score**2
    return scores


@pytest.mark.parametrize(("options", "sharing"), [({}, None), ({"sharing": 0.7}, 0.7)])
@pytest.mark.parametrize("name", ["ViTForImageClassification", "Bert"])
def test_the_formula(name, options, sharing):
    """With plain gradients, which transformers' own hidden states have too."""
    model = build_model(CASES[f"{name}-eager"]).double()
    inputs = to_double(CASES[f"{name}-eager"].inputs())
    image = "pixel_values" in inputs
    layout = None if image else CLASS_TOKEN
    result = Explainer(model, layout=layout).explain(
        inputs, method="shared_evidence", classes=[0, 2], gradients="plain", **options
    )
    usual = 2.0 if image else 0.25
    for b in range(len(result.scores)):
        one = {key: value[b : b + 1] for key, value in inputs.items()}
        output = run_model(model, one, output_hidden_states=True, output_attentions=True)
        entering = output.hidden_states[: len(output.attentions)]
        tokens = entering[0].shape[1]
        content = one.get("attention_mask", torch.ones(1, tokens))[0].bool().tolist()
        content[0] = False  # the class token
        for n, target in enumerate((0, 2)):
            gradients = torch.autograd.grad(output.logits[0, target], entering, retain_graph=True)
            expected = compute_by_formula(
                [x[0].detach() for x in entering],
                [g[0] for g in gradients],
                [a[0].detach() for a in output.attentions],
                content,
                image,
                usual if sharing is None else sharing,
            )
            real = torch.tensor(content)
            units = len(result.scores[b, n])
            found, real, expected = result.scores[b, n], real[-units:], expected[-units:]
            assert torch.allclose(found[real], expected[real], rtol=1e-9)
            assert expected[real].max() > 0


def test_without_sharing():
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    explainer = Explainer(model)
    result = explainer.explain(
        inputs, method="shared_evidence", target=1, sharing=0, keep_evidence=True
    )
    found = result.evidence
    held = sum(
        (x * g).sum(-1).clamp(min=0)
        for x, g in zip(found.hidden[:-1], found.hidden_gradient[:-1], strict=True)
    )
    assert torch.allclose(result.scores, held[:, 1:].sqrt())
    later = explainer.explain(
        inputs, method="shared_evidence", target=1, sharing=0, start_layer=1
    ).scores
    rest = sum(
        (x * g).sum(-1).clamp(min=0)
        for x, g in zip(found.hidden[1:-1], found.hidden_gradient[1:-1], strict=True)
    )
    assert torch.allclose(later, rest[:, 1:].sqrt())
    assert not torch.allclose(later, result.scores)


def test_uniform_attention_shares_with_all_tokens():
    case = CASES["ViTForImageClassification-eager"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "q_proj" in name:
                parameter.zero_()
    own = Explainer(model).explain(inputs, method="shared_evidence", target=0, sharing=0).scores
    shared = Explainer(model).explain(inputs, method="shared_evidence", target=0).scores
    assert torch.allclose(shared, (own + 2 * own.mean(-1, keepdim=True)) / 3)
    assert own.std() > 0


def test_pooling_by_attention():
    """What a learned query reads counts as what enters a block; its map binds no two tokens."""

    class Pools(HandWrittenViT):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Parameter(torch.randn(1, 1, 1, 32))

        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            self.entering = [self.embed(x.flatten(1, 2))]
            for block in self.blocks:
                self.entering.append(block(self.entering[-1]))
            tokens = self.entering[-1][:, None]
            query = self.query.expand(len(tokens), -1, -1, -1)
            return self.head(F.scaled_dot_product_attention(query, tokens, tokens)[:, 0, 0])

    torch.manual_seed(4)
    model, inputs = Pools().double(), make_images(32, 32).double()
    explainer = Explainer(model)
    own = explainer.explain(
        inputs, method="shared_evidence", target=1, sharing=0, gradients="plain"
    ).scores
    gradients = torch.autograd.grad(model(inputs)[:, 1].sum(), model.entering)
    held = sum((x * g).sum(-1).clamp(min=0) for x, g in zip(model.entering, gradients, strict=True))
    assert torch.allclose(own, held.sqrt())
    kept = explainer.explain(
        inputs, method="shared_evidence", target=1, gradients="plain", keep_evidence=True
    )
    mean = sum(maps.mean(1) for maps in kept.evidence.attention[:-1])
    bonds = mean + mean.mT
    others = (bonds @ own[..., None])[..., 0] / bonds.sum(-1)
    assert torch.allclose(kept.scores, (own + 2 * others) / 3)
    assert not torch.allclose(kept.scores, own)
    for method in ("attcat", "fullgrad_plus", "gradcam"):
        with pytest.raises(WhenceError, match="no skip connection around it"):
            explainer.explain(inputs, method=method)


def test_sharing_is_a_mean_over_tokens_without_padding():
    """However much is shared, scores stay between the lowest and the highest of the words."""
    case = CASES["Bert-sdpa"]
    model, inputs = build_model(case).double(), case.inputs()
    own = Explainer(model).explain(inputs, method="shared_evidence", target=0, sharing=0).scores
    shared = (
        Explainer(model).explain(inputs, method="shared_evidence", target=0, sharing=50.0).scores
    )
    assert not torch.allclose(own, shared, rtol=0.1)
    low, high = (
        own[:, 1:].masked_fill(inputs["attention_mask"][:, 1:] == 0, value)
        for value in (float("inf"), float("-inf"))
    )
    real = inputs["attention_mask"][:, 1:].bool()
    assert (shared[:, 1:][real] >= low.amin(1, keepdim=True).expand_as(real)[real] - 1e-12).all()
    assert (shared[:, 1:][real] <= high.amax(1, keepdim=True).expand_as(real)[real] + 1e-12).all()


@pytest.mark.parametrize("sharing", [-1.0, float("inf"), float("nan")])
def test_a_wrong_weight(sharing):
    with pytest.raises(WhenceError, match="sharing"):
        methods.build("shared_evidence", {"sharing": sharing})


def test_a_layer_that_does_not_exist():
    case = CASES["ViTForImageClassification-sdpa"]
    with pytest.raises(WhenceError, match="start_layer=9 does not exist"):
        Explainer(build_model(case)).explain(case.inputs(), method="shared_evidence", start_layer=9)


def test_its_settings():
    case = CASES["ViTForImageClassification-sdpa"]
    result = Explainer(build_model(case)).explain(case.inputs(), method="shared_evidence")
    assert result.settings == {"sharing": None, "start_layer": 0, "gradients": "balanced"}
    assert result.scores.min() >= 0
