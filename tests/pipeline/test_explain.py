"""Batches of inputs to explanations."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tests.cli.commands import list_files, read_summary, run_explain
from tests.saved import make_photo
from whence import Explainer, Explanation
from whence.models.image_preprocessing import ProcessorPreprocessor


def test_photos_and_texts_together_each_with_its_model(two_photos):
    (two_photos / "review.txt").write_text("good")
    entries = read_summary(".", "--batch", "1")
    assert [entry["name"] for entry in entries] == ["one", "review", "two"]
    assert [entry["kind"] for entry in entries] == ["image", "text", "image"]


def test_batches_give_the_same_as_one_by_one(two_photos):
    for number in range(5):
        make_photo(40 + number, 50, seed=number).save(f"p{number}.png")
    run_explain("p*.png", "--out", "together")
    run_explain("p*.png", "--out", "alone", "--batch", "1")
    for number in range(5):
        both = [Explanation.load(f"{out}/p{number}.safetensors") for out in ("together", "alone")]
        assert torch.allclose(both[0].scores, both[1].scores, atol=1e-6)


def test_full_batches_are_compiled(two_photos, programs):
    for number in range(7):
        make_photo(40 + number, 50, seed=number).save(f"p{number}.png")
    asked = ("p*.png", "--batch", "2", "--method", "tiba")
    run_explain(*asked, "--out", "eager")
    assert programs == []
    run_explain(*asked, "--out", "compiled", "--compile")
    ((pixels,),) = programs
    assert len(pixels) == 2
    for number in range(7):
        eager, compiled = (
            Explanation.load(f"{out}/p{number}.safetensors") for out in ("eager", "compiled")
        )
        assert torch.allclose(compiled.scores, eager.scores, rtol=1e-3, atol=1e-6)
        assert compiled.settings == eager.settings


def test_texts_of_different_lengths_are_not_compiled(two_photos, programs):
    texts = ["so good", "a good film", "the film is good", "a wonderful film and very good ."]
    assert len(read_summary(*texts, "--batch", "1", "--compile")) == 4
    assert programs == []


def test_inputs_of_the_other_kind(two_photos, image_model):
    result = run_explain("one.png", "good film", "--model", image_model, code=1)
    assert "good film: The model" in result.stderr
    assert "explains images, not texts" in result.stderr
    assert "one.png" in list_files(two_photos / "whence-out")
    summary = (two_photos / "whence-out" / "summary.json").read_text()
    assert f'"model": "{image_model.name}"' in summary  # without the path, which is private


def test_a_model_that_fails_now_and_then(two_photos, monkeypatch):
    from whence.models import LoadedModel

    explain = LoadedModel.explain

    def moody(self, prepared, **request):
        if len(prepared) > 1 or prepared.photos[0].crop.size == (30, 50):
            raise RuntimeError("out of\nluck")
        return explain(self, prepared, **request)

    monkeypatch.setattr(LoadedModel, "explain", moody)
    result = run_explain("one.png", "two.jpg", code=1)
    assert "two.jpg: Model or method failed: RuntimeError: out of." in result.stderr
    assert "one.png: " in result.stdout
    result = run_explain("two.jpg", "--out", "other", code=2)
    assert result.stderr == "Error: Model or method failed: RuntimeError: out of.\n"


def test_a_method_for_photos_fails_texts_beside_them(two_photos):
    pytest.importorskip("sklearn")
    entries = read_summary("one.png", "good film", "--method", "vit_cx", code=1)
    assert [entry["error"] for entry in entries] == [
        None,
        "Method 'vit_cx' explains images only.",
    ]
    alone = run_explain("good film", "--method", "vit_cx", "--out", "other", code=2)
    assert "'vit_cx' explains images only" in alone.output


@pytest.fixture
def tokenized(monkeypatch) -> list[str]:
    """The texts that a tokenizer was given, once for each time."""
    texts: list[str] = []
    encode = PreTrainedTokenizerFast.__call__

    def count(self, text, *arguments, **options):
        texts.extend([text] if isinstance(text, str) else text)
        return encode(self, text, *arguments, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", count)
    return texts


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_a_text_is_tokenised_once(two_photos, tokenized, batch):
    texts = ["a good film", "awful !", "good " * 100]
    entries = read_summary(*texts, "--batch", batch)
    assert tokenized == texts
    assert [entry["notes"] for entry in entries] == [
        [],
        [],
        ["cut at 64 of 102 tokens, the most that the model reads"],
    ]


def test_one_explainer_is_built(two_photos, monkeypatch):
    built = []
    initialize = Explainer.__init__

    def count(self, *arguments, **options):
        built.append(self)
        initialize(self, *arguments, **options)

    monkeypatch.setattr(Explainer, "__init__", count)
    read_summary("one.png", "two.jpg", "--batch", "1")
    assert len(built) == 1


def test_a_photo_is_prepared_once(two_photos, monkeypatch):
    prepared = []
    call = ProcessorPreprocessor.__call__

    def count(self, images):
        prepared.extend(images)
        return call(self, images)

    monkeypatch.setattr(ProcessorPreprocessor, "__call__", count)
    read_summary("one.png", "two.jpg")
    assert len(prepared) == 2
