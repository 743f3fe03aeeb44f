"""`of=`: which of a model's inputs get scores."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.two_inputs import OneSequence, TwoTowers, make_pair
from whence import Explainer, WhenceError, methods

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TOWER |= {"num_attention_heads": 2}
WORDS = {"vocab_size": 90, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2}


def build_clip(kind: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    vision = TOWER | {"image_size": 32, "patch_size": 8}
    text = TOWER | WORDS | ({"projection_size": 32} if kind == "Siglip" else {})
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    model = getattr(transformers, f"{kind}Model")(config).double().eval()
    try:
        model(**make_clip_inputs())
    except RuntimeError as error:
        pytest.skip(f"this release of transformers has no {kind} in float64: {error}")
    return model


def make_clip_inputs(images: int = 2, texts: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 90, (texts, 9), generator=generator)
    ids[:, -1] = 2
    pixels = torch.randn(images, 3, 32, 32, generator=generator).double()
    return {"input_ids": ids, "pixel_values": pixels}


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
@pytest.mark.parametrize("texts", [2, 3])
def test_images_and_texts_that_are_compared(kind, texts):
    model, inputs = build_clip(kind), make_clip_inputs(2, texts)
    explainer, plain = Explainer(model), model(**inputs)
    of_images = explainer.explain(inputs, [1, 0], of="pixel_values")
    assert torch.allclose(of_images.logits, plain.logits_per_image)
    assert (of_images.grid, of_images.scores.shape) == ((4, 4), (2, 16))
    assert of_images.target_names == ["text 1", "text 0"]
    of_texts = explainer.explain(inputs, "image 1", of="input_ids")
    assert torch.allclose(of_texts.logits, plain.logits_per_text)
    assert (of_texts.grid, of_texts.scores.shape) == (None, (texts, 9))
    assert of_texts.target.tolist() == [1] * texts
    assert of_texts.settings["of"] == "input_ids"
    # Without `of`, it is the model's main input.
    assert torch.equal(explainer.explain(inputs, 1).scores, of_texts.scores)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_gradient_of_one_pair(kind):
    model, inputs = build_clip(kind), make_clip_inputs()
    pixels = inputs["pixel_values"].clone().requires_grad_()
    logits = model(**{**inputs, "pixel_values": pixels}).logits_per_image
    (gradient,) = torch.autograd.grad(logits[0, 2] + logits[1, 0], pixels)
    expected = (gradient * pixels).sum(1).reshape(2, 4, 8, 4, 8).sum((2, 4)).flatten(1)
    found = Explainer(model).explain(
        inputs, [2, 0], of="pixel_values", method="input_x_gradient", gradients="plain"
    )
    assert torch.allclose(found.scores, expected)


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "lrp", "occlusion"])
def test_inputs_that_are_not_named_are_constants(method):
    model, inputs = TwoTowers(), make_pair()

    class ForTheseTexts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels):
            return self.model(pixels, inputs["ids"])["logits_per_image"]

    # Texts that were given are no classes of which one is true.
    alone = ForTheseTexts()
    alone.config = SimpleNamespace(problem_type="multi_label_classification")
    expected = Explainer(alone).explain(inputs["pixels"], 1, method=method)
    found = Explainer(model).explain(inputs, 1, of="pixels", method=method)
    assert torch.allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-6)


def test_padding_of_texts_is_none_of_images():
    class Masked(TwoTowers):
        def forward(self, pixels, ids, attention_mask=None):
            return super().forward(pixels, ids)

    inputs = make_pair(3, 3)
    inputs["ids"] = inputs["ids"][:, :4]  # as many words as patches
    mask = torch.tensor([[1, 1, 1, 0]] * 3)
    explainer = Explainer(Masked())
    plain, masked = (
        {of: explainer.explain(given, 1, of=of, method="tiba").scores for of in ("pixels", "ids")}
        for given in (inputs, {**inputs, "attention_mask": mask})
    )
    assert torch.equal(masked["pixels"], plain["pixels"])
    assert not masked["ids"][:, 3].any()
    assert plain["ids"][:, 3].any()


def test_class_names_are_the_texts():
    model, inputs = TwoTowers(), make_pair()
    explainer = Explainer(model, class_names=["a cat", "a dog", "a bird"])
    assert explainer.explain(inputs, "a dog", of="pixels").target_names == ["a dog"] * 2
    # A text is compared with images, which they do not name.
    assert explainer.explain(inputs, 1, of="ids").target_names == ["image 1"] * 3
    with pytest.raises(WhenceError, match=r"no class 'a dog'\. The model has 'image 0'"):
        explainer.explain(inputs, "a dog", of="ids")


class Spelling:
    """Stands for a tokenizer: token n is the n-th letter; 1 and 2 are special."""

    unk_token, all_special_tokens = "?", ["<1>", "<2>"]

    def convert_ids_to_tokens(self, ids):
        return [f"<{n}>" if n < 3 else chr(97 + n % 26) for n in ids]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)


def test_texts_are_named_where_a_tokenizer_is_known():
    model, inputs = build_clip("CLIP"), make_clip_inputs()
    written = ["".join(chr(97 + n % 26) for n in row[:-1]) for row in inputs["input_ids"].tolist()]
    for given in (Spelling(), SimpleNamespace(tokenizer=Spelling())):
        explainer = Explainer(model, tokenizer=given)
        result = explainer.explain(inputs, [2, 0], of="pixel_values", method="gae")
        assert result.target_names == [written[2], written[0]]
        again = explainer.explain(inputs, written[2], of="pixel_values", method="gae")
        assert again.target.tolist() == [2, 2]
        assert explainer.explain(inputs, 0, of="input_ids", method="gae").target_names == (
            ["image 0"] * 3
        )


def test_a_pair_of_siglip_has_a_probability_of_its_own():
    model, inputs = build_clip("Siglip"), make_clip_inputs(1)
    result = Explainer(model).explain(inputs, 1, of="pixel_values", method="gae")
    expected = model(**inputs).logits_per_image.sigmoid()[0, 1]
    assert result.classes()[0].probability == pytest.approx(float(expected))


# Several inputs ----------------------------------------------------------------------------------

GRADIENTS = ("gradient", "input_x_gradient", "gae", "attention_gradcam", "rollout", "occlusion")


@pytest.mark.parametrize("method", GRADIENTS)
def test_several_inputs_are_explained_by_one_pass(method):
    model, inputs = TwoTowers().double(), make_pair()
    inputs["pixels"] = inputs["pixels"].double()
    explainer = Explainer(model)
    both = explainer.explain(inputs, 1, of=["ids", "pixels"], method=method)
    assert list(both) == ["ids", "pixels"]
    assert both["ids"].scores.shape == (3, 5)
    assert both["pixels"].grid == (2, 2)
    for name, found in both.items():  # no relevance is shared, so it does not matter what is named
        alone = explainer.explain(inputs, 1, of=name, method=method)
        assert torch.allclose(found.scores, alone.scores)
        assert torch.allclose(found.logits, alone.logits)
        assert found.settings == alone.settings


def test_relevance_is_shared_by_the_inputs():
    model, inputs = TwoTowers().double(), make_pair()
    inputs["pixels"] = inputs["pixels"].double()
    explainer = Explainer(model)
    alone = explainer.explain(inputs, 1, of="pixels", method="lrp", rules="stable").scores.sum(1)
    both = explainer.explain(inputs, 1, of=["pixels", "ids"], method="lrp", rules="stable")
    # The product of the embeddings gives half to each of them.
    assert torch.allclose(both["pixels"].scores.sum(1), alone / 2)
    again = explainer.explain(inputs, 1, of=["ids", "pixels"], method="lrp", rules="stable")
    assert torch.allclose(again["pixels"].scores, both["pixels"].scores)
    # These rules sum over each sample, and a product of all pairs has none.
    with pytest.raises(WhenceError, match="belongs to which of 3 samples cannot be told"):
        explainer.explain(inputs, of=["ids", "pixels"], method="lrp", rules="paper")


def test_several_inputs_of_one_sequence():
    model, inputs = OneSequence(), make_pair(3, 3)
    explainer = Explainer(model, class_names=[*"abcd"])
    both = explainer.explain(inputs, [0, 1, 2], of=("pixels", "ids"), method="gae")
    for name, found in both.items():
        alone = explainer.explain(inputs, [0, 1, 2], of=name, method="gae")
        assert torch.allclose(found.scores, alone.scores)
    assert both["ids"].scores.shape == (3, 5)
    assert both["pixels"].grid == (2, 2)
    assert both["ids"].target_names == [*"abc"]
    assert torch.equal(both["ids"].logits, both["pixels"].logits)


def test_many_passes_of_several_inputs():
    model, inputs = TwoTowers(), make_pair()
    options = {"method": "smoothgrad", "samples": 2, "gradients": "balanced"}
    both = Explainer(model).explain(inputs, of=["ids", "pixels"], **options)
    assert both["ids"].scores.shape == (3, 5)
    assert both["pixels"].scores.shape == (2, 4)


def test_a_program_is_for_one_input(programs):
    model, inputs = TwoTowers(), make_pair(3, 3)
    compiling, plain = Explainer(model, compile=True), Explainer(model)
    for of in ("pixels", "ids", "pixels"):
        found = compiling.explain(inputs, "text 1" if of == "pixels" else 1, of=of, method="tiba")
        expected = plain.explain(inputs, 1, of=of, method="tiba")
        assert torch.allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-7)
        assert found.target_names == expected.target_names
    assert len(programs) == 1  # of a name that only the logits tell there is none
    compiling.explain(inputs, 1, of="pixels", method="tiba")
    assert len(programs) == 2
    compiling.explain(inputs, 1, of=["pixels", "ids"], method="tiba")
    assert len(programs) == 2


# What is refused ---------------------------------------------------------------------------------


def test_names_of_no_input():
    explainer, inputs = Explainer(TwoTowers()), make_pair()
    with pytest.raises(WhenceError, match=r"of='words' names no tensor .* hold 'pixels', 'ids'"):
        explainer.explain(inputs, of="words")
    with pytest.raises(WhenceError, match="of='words' names no tensor"):
        explainer.compile(inputs, of="words")
    with pytest.raises(WhenceError, match="One input at a time can be compiled"):
        explainer.compile(inputs, of=["ids", "pixels"])


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_one_half_of_a_pair(kind):
    explainer, inputs = Explainer(build_clip(kind)), make_clip_inputs()
    with pytest.raises(WhenceError, match=r"compares texts with images, .* no texts .* Give both"):
        explainer.explain({"pixel_values": inputs["pixel_values"]})
    with pytest.raises(WhenceError, match=r"hold no images\. Give both"):
        explainer.explain({"input_ids": inputs["input_ids"]})


def test_a_method_of_photos_alone():
    images = [n for n in methods.available() if methods.describe(n).inputs == ("image",)]
    assert images
    with pytest.raises(WhenceError, match="explains images only, and this input is a text"):
        Explainer(TwoTowers()).explain(make_pair(), of="ids", method=images[0])
