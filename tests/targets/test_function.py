"""Functions of the user's own as targets."""

import pytest
import torch
from torch import nn

from tests.targets.models import build_encoder, make_batch, multiply_words, select_text
from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, WhenceError, methods

METHOD = {"method": "input_x_gradient"}


@pytest.fixture(scope="module")
def encoder():
    return build_encoder("Model")


def mix(outputs, inputs):
    """Of two outputs, and of what went in."""
    weights = inputs["attention_mask"].double()
    hidden = outputs["last_hidden_state"]
    return (hidden[..., 0] * weights).sum(1).square() + outputs.pooler_output[:, 2].log1p()


def test_a_function_of_several_outputs(encoder):
    batch = make_batch()
    result = Explainer(encoder).explain(batch, mix, **METHOD)
    for sample in (0, 1):
        text = select_text(batch, sample)
        expected = multiply_words(encoder, text, lambda r, text=text: mix(r, text)[0])
        real = batch["attention_mask"][sample].bool()
        assert torch.allclose(result.scores[sample][real], expected, rtol=1e-6, atol=1e-9)
    assert result.target_names == ["mix", "mix"]
    assert torch.allclose(result.values, mix(encoder(**batch), batch))


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients", "gae", "tiba", "whence"])
def test_a_function_is_called_with_the_rows_it_is_given(encoder, method):
    """Chunks, and rows that methods run again, come with the inputs of their own samples."""
    batch = make_batch()
    explainer = Explainer(encoder)
    whole = explainer.explain(batch, mix, method=method)
    chunks = explainer.explain(batch, mix, method=method, memory=1e-6)
    assert torch.allclose(whole.scores, chunks.scores, rtol=1e-6, atol=1e-9)
    for sample in (0, 1):
        text = {name: value[sample : sample + 1] for name, value in batch.items()}
        alone = explainer.explain(text, mix, method=method)
        assert torch.allclose(whole.scores[sample], alone.scores[0], rtol=1e-6, atol=1e-9)


def test_functions_against_classes_and_each_other():
    model, images = HandWrittenViT().double(), make_images(32, 32).double()
    explainer = Explainer(model)

    def second(outputs, _):
        return outputs[:, 2]

    for method in ("attnlrp", "gae"):
        result = explainer.explain(images, second, against=1, method=method)
        expected = explainer.explain(images, 2, against=1, method=method)
        assert torch.allclose(result.scores, expected.scores, rtol=1e-9, atol=1e-12)
        assert result.target_names == ["second rather than class 1"] * 3
    both = explainer.explain(images, classes=[second, 4, second], method="attnlrp")
    plain = explainer.explain(images, classes=[2, 4], method="attnlrp")
    assert torch.allclose(both.scores[:, :2], plain.scores, rtol=1e-9, atol=1e-12)
    assert torch.allclose(both.scores[:, 0], both.scores[:, 2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", [n for n in methods.available("image") if n != "random"])
def test_every_method_takes_any_scalar(method):
    model, images = HandWrittenViT().double(), make_images(32, 32).double()
    options = {"samples": 2} if method == "smoothgrad" else {}
    result = Explainer(model).explain(
        images[:1], lambda outputs, _: outputs[:, 2] - outputs[:, 0], method=method, **options
    )
    named = Explainer(model).explain(images[:1], 2, against=0, method=method, **options)
    assert result.scores.shape == (1, 16)
    if methods.get(method)().class_specific and method not in ("rise", "vit_cx", "search"):
        assert torch.allclose(result.scores, named.scores, rtol=1e-6, atol=1e-9)


class Pair(nn.Module):
    """Gives a tuple of what is no class logits."""

    def __init__(self):
        super().__init__()
        self.inner = HandWrittenViT()

    def forward(self, image):
        logits = self.inner(image)
        return {"deep": (logits, [logits * 2]), "count": 3, "mean": logits.mean()}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda o, _: o["deep"][0], r"one number for each sample, of shape \(3,\), not \(3, 5\)"),
        (lambda o, _: 3, "not int"),
        (lambda o: o["deep"], "f\\(outputs, inputs\\) failed: TypeError.*takes 1 positional"),
        (lambda o, _: o["nothing"], "failed: KeyError: 'nothing'"),
        (lambda o, _: o["deep"][0][:, 0] * torch.nan, "no finite numbers"),
        (lambda o, _: torch.ones(3), "does not depend on the model's output"),
        (lambda o, _: o["deep"][0][:, 0].detach(), "does not depend on the model's output"),
        (lambda o, _: o["mean"].expand(3), r"an output of shape \(\), which has not one row"),
    ],
)
def test_functions_that_give_no_scalar(function, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(Pair()).explain(make_images(32, 32), function, **METHOD)


def test_nested_outputs():
    model, images = Pair().double(), make_images(32, 32).double()
    result = Explainer(model).explain(images, lambda o, x: o["deep"][1][0][:, 2] * len(x), **METHOD)
    expected = Explainer(model.inner).explain(images, 2, **METHOD)
    assert torch.allclose(result.scores, expected.scores * 6)
