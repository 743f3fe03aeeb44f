"""Models that are loaded already, with their processors, explain as those loaded by name."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.saved import make_photo
from tests.zoo import HandWrittenViT
from whence import WhenceError, compare, explain
from whence.models import load, wrap
from whence.models.image_preprocessing import PixelScale
from whence.models.transform_preprocessing import TransformPreprocessor

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def vit(image_model):
    model = transformers.AutoModelForImageClassification.from_pretrained(image_model)
    return model.float().eval()


@pytest.fixture(scope="module")
def bert(text_model):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(text_model)
    return model.float().eval()


@pytest.fixture(scope="module")
def tokenizer(text_model):
    return transformers.AutoTokenizer.from_pretrained(text_model)


@pytest.fixture(scope="module")
def image_processor(image_model):
    return transformers.AutoImageProcessor.from_pretrained(image_model, backend="pil")


def to_pixels(image: Image.Image, side: int = 32) -> torch.Tensor:
    """A transform: the middle square, to values from -1 to 1."""
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    image = image.crop((left, top, left + short, top + short)).resize((side, side))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 127.5 - 1


def test_an_image_model_with_its_processor(vit, image_processor, image_model):
    expected = explain(make_photo(), image_model)
    result = explain(make_photo(), vit, processor=image_processor)
    assert torch.equal(result.scores, expected.scores)
    assert result.target_names == expected.target_names
    assert result.photos[0].box == (0, 0, 60, 40)
    assert result.model == image_model.name


def test_a_text_model_with_its_tokenizer(bert, tokenizer, text_model):
    expected = explain(["a good film", "awful"], text_model)
    result = explain(["a good film", "awful"], bert, processor=tokenizer)
    assert torch.equal(result.scores, expected.scores)
    assert result.words() == expected.words()


def test_pipelines_bring_their_processors(vit, bert, image_processor, tokenizer, image_model):
    photos = transformers.pipeline(
        "image-classification", model=vit, image_processor=image_processor
    )
    result = explain(make_photo(), photos)
    assert torch.equal(result.scores, explain(make_photo(), image_model).scores)
    assert result.target_names[0] == photos(make_photo())[0]["label"]
    texts = transformers.pipeline("text-classification", model=bert, tokenizer=tokenizer)
    with pytest.raises(WhenceError, match="The input comes first, then the model"):
        explain(texts, "a good film")
    assert explain("a good film", texts).target_names[0] == texts("a good film")[0]["label"]
    measured = compare("a very good film", ["gradient"], texts, faithfulness=True)
    assert measured.faithfulness is not None
    with pytest.raises(WhenceError, match="this one brings its own"):
        explain("good", texts, processor=tokenizer)
    texts.task = "question-answering"
    with pytest.raises(WhenceError, match=r"for question-answering is not explained as it is.*Exp"):
        explain("good", texts)


def test_tensors_need_no_processor(vit, image_processor):
    pixels = image_processor([make_photo()], return_tensors="pt")["pixel_values"]
    expected = explain(make_photo(), vit, processor=image_processor)
    assert torch.equal(explain(pixels, vit).scores, expected.scores)
    assert torch.equal(explain({"pixel_values": pixels}, vit).scores, expected.scores)


def test_half_precision_gets_half_precision(vit, image_processor):
    half = copy.deepcopy(vit).half()
    assert explain(make_photo(), half, processor=image_processor).logits.dtype == torch.float16


@pytest.mark.parametrize("size", [(90, 50), (50, 90), (333, 200)])
def test_a_function_as_processor(size):
    """A module of one's own: the part that it saw, and how it scales, are found."""
    photo = make_photo(*size)
    result = explain(photo, HandWrittenViT(), processor=to_pixels)
    (kept,) = result.photos
    short = min(size)
    left, top = (size[0] - short) / 2, (size[1] - short) / 2
    expected = (left, top, left + short, top + short)
    assert kept.box == pytest.approx(expected, abs=0.01 * max(size))
    assert result.model == "HandWrittenViT"
    scale = PixelScale.from_model(wrap(HandWrittenViT(), to_pixels))
    assert scale.mean == pytest.approx((0.5,) * 3)
    assert scale.std == pytest.approx((0.5,) * 3)


def test_a_function_that_turns_photos_shows_what_the_model_saw():
    turn = TransformPreprocessor(lambda image: to_pixels(image.rotate(90)))
    (kept,) = turn([make_photo(40, 40)]).photos
    turned = make_photo(40, 40).rotate(90).resize((32, 32))
    assert np.abs(np.asarray(kept.image, int) - np.asarray(turned, int)).max() <= 1


def test_timm_models_need_no_processor():
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=2).eval()
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    photo = make_photo(320, 240)
    result = explain(photo, model, method="gradient", target=3)
    expected = explain(transform(photo)[None], model, method="gradient", target=3)
    assert torch.allclose(result.scores, expected.scores, rtol=1e-3, atol=1e-7)
    assert result.model == "timm:vit_tiny_patch16_224"
    assert result.photos[0].box[0] > 30
    assert result.target_names[0].startswith("tiger shark")


@pytest.mark.parametrize("how", [{"crop_mode": "border"}, {"input_size": (3, 64, 32)}])
def test_other_crops_of_timm_are_its_own_transform(how):
    """Borders around the photo, and models that take no squares."""
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=2)
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 32, 32), **how}
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    prepared = wrap(model).prepare([make_photo(120, 80)])
    assert torch.equal(prepared.inputs[0], transform(make_photo(120, 80)))


def test_torchvision_models_need_no_processor():
    models = pytest.importorskip("torchvision.models")
    model = models.VisionTransformer(32, 16, 1, 2, 24, 32, num_classes=4).eval()
    result = explain(make_photo(90, 60), model)
    assert result.grid == (2, 2)
    assert result.photos[0].has_crop


def test_the_users_tokenizer_stays_as_it_is(tokenizer):
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=1, n_head=2, pad_token_id=None
    )
    model = transformers.GPT2ForSequenceClassification(config).eval()
    bare = copy.deepcopy(tokenizer)
    bare.pad_token = None
    assert explain("a good film", model, processor=bare).scores.shape[0] == 1
    with pytest.raises(WhenceError, match="no padding token, which several texts at once need"):
        explain(["a good film", "awful"], model, processor=bare)
    assert bare.pad_token is None
    assert config.pad_token_id is None


def test_what_is_missing_or_wrong(vit, bert, tokenizer, image_processor):
    photo, random = make_photo(), lambda image: to_pixels(image) + torch.randn(1)
    for arguments, message in (
        ((photo, vit), "came without its image processor.*processor=AutoImageProcessor"),
        (("good", bert), "came without its tokenizer.*processor=AutoTokenizer"),
        ((photo, vit, tokenizer), "reads images: give its image processor, not a tokenizer"),
        (
            ("good", bert, image_processor),
            "reads texts: give its tokenizer, not an image processor",
        ),
        (("good", vit, image_processor), "explains images, not texts"),
        ((photo, vit, 3), "A processor is a tokenizer, .* not int"),
        ((photo, 3), "A model is a name, a folder, .* not int"),
        ((photo, "name", image_processor), "a model by name brings its own"),
        ((photo, HandWrittenViT(), lambda image: 3), "The processor returns int for a photo"),
        ((photo, HandWrittenViT(), lambda image: 1 / 0), "cannot prepare a photo: ZeroDivision"),
        ((photo, HandWrittenViT(), random), "changes photos at random"),
        ((photo, nn.Identity()), "Identity came without its image processor"),
    ):
        what, model, processor = (*arguments, None)[:3]
        with pytest.raises(WhenceError, match=message):
            explain(what, model, processor=processor)
    with pytest.raises(WhenceError, match=r"model.to\(device\) moves it"):
        explain(photo, vit, device="cpu", processor=image_processor)
    loaded = load(None, "image")
    assert wrap(loaded) is loaded


def test_models_that_compare_photos_with_texts(tokenizer):
    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=tower, vision_config=tower | {"image_size": 32, "patch_size": 8}
    )
    model = transformers.CLIPModel(config)
    try:
        side = {"height": 32, "width": 32}
        images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
        processor = transformers.CLIPProcessor(images, tokenizer)
    except TypeError:
        pytest.skip("transformers 4 takes no other tokenizer than CLIP's own")
    with pytest.raises(WhenceError, match="compares images with texts, and none are named"):
        explain(make_photo(), model, processor=processor)
    with pytest.raises(WhenceError, match="CLIPModel compares photos with texts: give the proc"):
        explain(make_photo(), model, processor=tokenizer, texts=["good", "bad"])
    result = explain(make_photo(30, 30), model, processor=processor, texts=["good", "bad"])
    assert [word for word, _ in result.compared_words()] == result.target_names
