import pytest
import torch
from torch import Tensor

from tests.methods.plain_models import to_double
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, run_model
from whence import Explainer, WhenceError


def compute_by_formula(model, inputs, target: int) -> Tensor:
    """One sample at a time, of transformers' own hidden states and attention maps."""
    scores = []
    batch = len(next(iter(inputs.values())))
    for b in range(batch):
        one = {name: value[b : b + 1] for name, value in inputs.items()}
        output = run_model(model, one, output_hidden_states=True, output_attentions=True)
        entering = output.hidden_states[: len(output.attentions)]
        gradients = torch.autograd.grad(output.logits[0, target], entering)
        tokens = entering[0].shape[1]
        real = one.get("attention_mask", torch.ones(1, tokens))[0].bool()
        total = torch.zeros(tokens, dtype=torch.float64)
        for hidden, gradient, maps in zip(entering, gradients, output.attentions, strict=True):
            for i in range(tokens):
                activation = (hidden[0, i] * gradient[0, i]).sum()
                received = maps[0, :, real, i].mean()
                total[i] += (activation * received).detach()
        scores.append(total)
    return torch.stack(scores)


@pytest.mark.parametrize(
    "name",
    [
        *("ViTForImageClassification", "Dinov2ForImageClassification", "Bert", "Electra"),
        "BeitForImageClassification",
    ],
)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_formula(name, implementation):
    """A class token, averages, and padded texts; two classes."""
    model = build_model(CASES[f"{name}-eager"]).double()
    inputs = to_double(CASES[f"{name}-eager"].inputs())
    explained = build_model(CASES[f"{name}-{implementation}"]).double()
    # Some families compute eager maps in float32, whatever the model is in.
    close = 1e-12 if implementation == "eager" else 1e-6
    result = Explainer(explained).explain(inputs, method="attcat", classes=[0, 2])
    for n, target in enumerate((0, 2)):
        expected = compute_by_formula(model, inputs, target)[:, -result.scores.shape[-1] :]
        assert (result.scores[:, n] - expected).abs().max() < close * expected.abs().max()
        assert expected.min() < 0 < expected.max()


def test_average_pooling_in_timm():
    case = CASES["timm-vit-average-fused"]
    model, pixels = build_model(case).double(), case.inputs().double()
    result = Explainer(model).explain(pixels, target=1, method="attcat")
    entering = []
    hooks = [b.register_forward_pre_hook(lambda _, a: entering.append(a[0])) for b in model.blocks]
    gradients = torch.autograd.grad(model(pixels)[:, 1].sum(), entering)
    for hook in hooks:
        hook.remove()
    maps = case.attention(model, pixels)[1]
    expected = sum(
        (h * g).sum(-1) * a.mean((1, 2)) for h, g, a in zip(entering, gradients, maps, strict=True)
    )
    assert torch.allclose(result.scores, expected, rtol=1e-8)


@pytest.mark.parametrize("gradients", ["plain", "balanced"])
def test_padding_and_the_batch_change_nothing(gradients):
    model, inputs = build_model(CASES["Bert-sdpa"]).double(), CASES["Bert-sdpa"].inputs()
    whole = Explainer(model).explain(inputs, method="attcat", target=1, gradients=gradients).scores
    length = int(inputs["attention_mask"][1].sum())
    alone = {name: value[1:2, :length] for name, value in inputs.items()}
    single = Explainer(model).explain(alone, method="attcat", target=1, gradients=gradients).scores
    assert torch.allclose(whole[1:2, :length], single, rtol=1e-8, atol=1e-14)
    assert whole[1, length:].abs().max() == 0


def test_balanced_gradients():
    model = HandWrittenViT().double()
    result = Explainer(model).explain(
        make_images(32, 32).double(), method="attcat", gradients="balanced", keep_evidence=True
    )
    found = result.evidence
    expected = sum(
        (h * g).sum(-1) * a.mean((1, 2))
        for h, g, a in zip(found.hidden, found.hidden_gradient, found.attention, strict=False)
    )
    assert torch.allclose(result.scores, expected[:, 1:], rtol=1e-10)
    plain = Explainer(model).explain(make_images(32, 32).double(), method="attcat").scores
    assert (plain - result.scores).abs().max() > 1e-2 * plain.abs().max()


def test_a_constant_logit_gives_zeros():
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    result = Explainer(model).explain(make_images(32, 32), classes=[0, 1], method="attcat")
    assert torch.equal(result.scores, torch.zeros(3, 2, 16))


def test_a_text_of_one_token():
    model = build_model(CASES["Bert-sdpa"])
    result = Explainer(model).explain({"input_ids": torch.tensor([[7]])}, method="attcat")
    assert torch.isfinite(result.scores).all()
    assert result.scores.abs().min() > 0


def test_wrong_options():
    with pytest.raises(WhenceError, match="must be 'plain' or 'balanced'"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="attcat", gradients="other")
