"""Models that compare photos with texts, by name and as objects."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

from whence import Explainer, Explanation, PairExplanation, WhenceError, explain, models
from whence.models.pair_loading import PaddedTexts, prepare_texts

FOLDER = Path(__file__).parents[2] / "examples" / "shapes_clip"
PHOTOS = [FOLDER / "star.jpg", FOLDER / "cross.jpg"]
TEXTS = ["a blue star", "an orange circle", "a star and a green triangle"]


@pytest.fixture(scope="module")
def clip():
    return models.load(FOLDER)


@pytest.fixture(scope="module")
def plain():
    """The model by transformers alone, with what it takes."""
    model = CLIPModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(FOLDER, backend="pil", use_fast=False)
    tokens = AutoTokenizer.from_pretrained(FOLDER)(TEXTS, padding=True, return_tensors="pt")
    pixels = processor([Image.open(path) for path in PHOTOS], return_tensors="pt")
    return model, {**tokens, **pixels}


def test_probabilities_are_those_of_the_model(clip, plain):
    model, inputs = plain
    result = explain(PHOTOS, clip, texts=TEXTS)
    with torch.no_grad():
        expected = model(**inputs).logits_per_image.softmax(1)
    assert torch.allclose(result.fits, expected, atol=1e-5)
    assert result.target.tolist() == expected.argmax(1).tolist()
    assert result.target_names == [TEXTS[n] for n in expected.argmax(1)]
    best = result.list_fits(1)[0]
    assert (best.text, best.value) == (result.target_names[1], float(result.fits[1].max()))
    assert result.grid == (8, 8)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("tiba", "gae", "input_x_gradient")]


@pytest.mark.parametrize("method", ["whence", *SLOW])
def test_maps_and_words_are_those_of_an_explainer(clip, plain, method):
    """Each photo with each of its texts, one pair at a time."""
    model, inputs = plain
    result = explain(PHOTOS, clip, texts=TEXTS, classes=[0, 2], method=method)
    assert isinstance(result, PairExplanation)
    explainer = Explainer(model, tokenizer=AutoTokenizer.from_pretrained(FOLDER))
    for photo in range(2):
        for number, text in enumerate((0, 2)):
            pair = {n: x[text : text + 1] for n, x in inputs.items() if n != "pixel_values"}
            length = int(pair["attention_mask"].sum())
            pair = {n: x[:, :length] for n, x in pair.items()}
            pair["pixel_values"] = inputs["pixel_values"][photo : photo + 1]
            image = explainer.explain(pair, 0, of="pixel_values", method=method)
            assert torch.allclose(result.scores[photo, number], image.scores[0], atol=1e-4)
            words = explainer.explain(pair, 0, of="input_ids", method=method).scores[0, 1:-1]
            found = result.compared_words(photo, number)
            assert [word for word, _ in found] == TEXTS[text].split()
            scores = torch.tensor([score for _, score in found])
            assert torch.allclose(scores, words, rtol=1e-3, atol=1e-4 * float(words.abs().max()))


@pytest.mark.slow
def test_a_pipeline_brings_its_processor(plain):
    model, _ = plain
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    images = AutoImageProcessor.from_pretrained(FOLDER, backend="pil", use_fast=False)
    task = "zero-shot-image-classification"
    made = transformers.pipeline(task, model=model, tokenizer=tokenizer, image_processor=images)
    result = explain(PHOTOS[0], made, texts=TEXTS, method="gae")
    answers = {
        one["label"]: one["score"]
        for one in made(str(PHOTOS[0]), candidate_labels=TEXTS, hypothesis_template="{}")
    }
    found = {one.text: one.value for one in result.list_fits()}
    assert found == pytest.approx(answers, abs=1e-3)


def test_texts_by_name_and_against_each_other(clip):
    result = explain(PHOTOS[0], clip, texts=TEXTS, target=TEXTS[1], against=TEXTS[0])
    assert result.target_names == [f"{TEXTS[1]} rather than {TEXTS[0]}"]
    assert [word for word, _ in result.compared_words()] == TEXTS[1].split()
    with pytest.raises(WhenceError, match="no class 'a dog'"):
        explain(PHOTOS[0], clip, texts=TEXTS, target="a dog")


def test_it_is_saved_and_cut_as_others_are(clip, tmp_path):
    result = explain(PHOTOS, clip, texts=TEXTS, classes=2, method="gae")
    result.save(tmp_path / "pair.safetensors")
    again = Explanation.load(tmp_path / "pair.safetensors")
    assert isinstance(again, PairExplanation)
    assert (again.texts, again.word_scores) == (TEXTS, result.word_scores)
    second = again[1]
    assert second.compared_words(0, 1) == result.compared_words(1, 1)
    assert torch.equal(second.fits, result.fits[1:])
    with pytest.raises(WhenceError, match="There is no explained class 2"):
        second.compared_words(0, 2)


def test_one_text_alone_has_no_probability(clip):
    result = explain(PHOTOS[0], clip, texts=["a blue star"])
    assert result.classes()[0].probability is None
    assert result.list_fits() == []
    assert result.notes == ["one text alone has no probability: name others to compare with"]
    assert len(result.compared_words()) == 3


@pytest.mark.slow
def test_a_method_of_photos_alone_scores_no_words(clip):
    result = explain(PHOTOS[0], clip, texts=TEXTS, method="vit_cx", distance=2.0)
    with pytest.raises(WhenceError, match="'vit_cx' explains photos only"):
        result.compared_words()
    assert result.heatmap().shape == (1, 64, 64)


def test_words_that_a_method_refuses_are_noted(clip):
    loaded = models.compare_with(clip, TEXTS)
    vision = clip.model.vision_model.encoder.layers
    kept = clip.model.text_model.encoder.layers
    try:
        clip.model.text_model.encoder.layers = kept[:1]
        last = len(vision) - 1
        result = loaded.explain(loaded.prepare([Image.open(PHOTOS[0])]), start_layer=last)
    finally:
        clip.model.text_model.encoder.layers = kept
    assert result.word_scores == [[[]]]
    assert "words of the texts have no scores" in result.notes[0]


@pytest.mark.slow
def test_faithfulness_runs_with_the_texts(clip):
    from whence.models.forward import compute_logits

    loaded = models.compare_with(clip, TEXTS)
    prepared = loaded.prepare([Image.open(path) for path in PHOTOS])
    logits = compute_logits(loaded, prepared.inputs)
    assert torch.allclose(logits.softmax(1), loaded.explain(prepared).fits, atol=1e-5)


def test_padding_that_a_model_reads_is_kept():
    """SigLIP was trained on texts of one length."""
    from transformers import SiglipConfig, SiglipModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 12, "vocab_size": 100}
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    del vision["max_position_embeddings"], vision["vocab_size"]
    model = SiglipModel(SiglipConfig(text_config=sizes, vision_config=vision))
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    prepare = prepare_texts(tokenizer, model)
    assert isinstance(prepare, PaddedTexts)
    assert prepare(["a star", "a red circle"]).inputs["input_ids"].shape == (2, 12)


def test_photos_that_are_cut_into_any_number_of_patches():
    """SigLIP 2: the map has the rows and columns of the photo's own shape."""
    cut = pytest.importorskip("transformers.models.siglip2.image_processing_pil_siglip2")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24}
    text = {**sizes, "max_position_embeddings": 12, "vocab_size": 100, "projection_size": 16}
    config = {"text_config": text, "vision_config": {**sizes, "num_patches": 16, "patch_size": 8}}
    model = transformers.Siglip2Model(transformers.Siglip2Config(**config)).eval()
    images = cut.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    processor = SimpleNamespace(tokenizer=tokenizer, image_processor=images)
    photo = Image.open(PHOTOS[0]).resize((80, 60))
    result = explain(photo, model, processor=processor, texts=TEXTS, method="gae")
    patches = images([photo], return_tensors="pt")
    assert result.grid == tuple(patches["spatial_shapes"][0].tolist()) == (3, 4)
    how = {"padding": "max_length", "truncation": True, "max_length": 12}
    tokens = tokenizer(TEXTS, return_tensors="pt", **how)
    with torch.no_grad():
        expected = model(**tokens, **patches).logits_per_image.sigmoid()
    assert torch.allclose(result.fits, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "Name at least one text"),
        (["a", " "], "A text to compare with is empty"),
        (["a star", " a star"], "'a star' is named twice"),
        ("a star", r"texts is a list of texts, such as \['a star'"),
        ([3], "is a string, not int"),
    ],
)
def test_texts_that_are_none(clip, texts, message):
    with pytest.raises(WhenceError, match=message):
        explain(PHOTOS[0], clip, texts=texts)


def test_what_is_refused(clip, vit):
    with pytest.raises(WhenceError, match="compares images with texts, and none are named"):
        explain(PHOTOS[0], clip)
    with pytest.raises(WhenceError, match=r"compares nothing with texts\. Name one that does"):
        explain(PHOTOS[0], vit, texts=TEXTS)
    with pytest.raises(WhenceError, match="texts= is for a model that compares"):
        explain(PHOTOS[0], texts=TEXTS)
    with pytest.raises(WhenceError, match="beside the photo's map; leave `of`"):
        explain(PHOTOS[0], clip, texts=TEXTS, of="input_ids")
    with pytest.raises(WhenceError, match="explains images, not texts"):
        explain("a blue star", clip, texts=TEXTS)
