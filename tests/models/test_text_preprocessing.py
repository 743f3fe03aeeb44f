import pytest
import torch

from tests.saved import make_photo
from tests.zoo import CASES, build_model
from whence import WhenceError
from whence.models import load
from whence.models.loaded import select_sample
from whence.models.text_preprocessing import find_position_limit, join_batches

TEXTS = ["a wonderful film , and very good", "awful", "the films"]
FIELDS = ("ids", "tokens", "word_ids", "offsets", "type_ids", "attention_mask", "sequence_ids")


def test_long_texts_are_cut_and_it_is_said(text_model):
    prepared = load(text_model).prepare(["good " * 5000, "good"])
    assert prepared.inputs["input_ids"].shape == (2, 64)
    assert prepared.notes == [["cut at 64 of 5002 tokens, the most that the model reads"], []]


@pytest.mark.parametrize("text", ["🎉 film", "film נפלא", "film \u202eabc\u202c"])
def test_what_the_vocabulary_lacks_is_shown_as_written(text, text_model):
    loaded = load(text_model)
    prepared = loaded.prepare([text])
    assert prepared.notes == [["1 token(s) are not in the model's vocabulary"]]
    words = [word for word, _ in loaded.explain(prepared).words()]
    assert "film" in words
    assert "[UNK]" not in words
    assert (set(words) - {"film"}) <= {"🎉", "נפלא", "abc"}


def test_text_without_words(text_model):
    with pytest.raises(WhenceError, match="finds no words in"):
        load(text_model).prepare(["\u200b\u200e"])


def test_one_of_a_padded_batch_is_as_if_alone(text_model):
    loaded = load(text_model)
    texts = ["a wonderful film , and very very good", "awful"]
    prepared = loaded.prepare(texts)
    explanation = loaded.explain(prepared, classes=2)
    for sample, text in enumerate(texts):
        alone = loaded.explain(loaded.prepare([text]), classes=2)
        part = select_sample(explanation, sample, prepared)
        assert part.tokens == alone.tokens
        assert part.target_names == alone.target_names
        assert part.scores.shape == alone.scores.shape
        assert (part.scores - alone.scores).abs().max() < 1e-5


def test_generative_models_get_padding(text_model):
    loaded = load(text_model)
    tokenizer, model = loaded.tokenizer, loaded.model
    tokenizer.pad_token, tokenizer.eos_token = None, "[SEP]"
    model.config.pad_token_id = None
    prepared = type(loaded.preprocessor)(tokenizer, model)(["good film", "awful"])
    assert prepared.inputs["input_ids"].shape == (2, 4)
    assert model.config.pad_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize(
    ("name", "limit"), [("Bert-sdpa", 64), ("Roberta-sdpa", 62), ("DistilBert-sdpa", 64)]
)
def test_how_many_tokens_a_model_takes(name, limit):
    assert find_position_limit(build_model(CASES[name])) == limit


@pytest.mark.parametrize("side", ["right", "left"])
def test_joined_texts_are_as_tokenised_together(text_model, side):
    loaded = load(text_model)
    loaded.tokenizer.padding_side = side
    joined = join_batches([loaded.prepare([text]) for text in TEXTS], loaded.tokenizer)
    together = loaded.tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert list(joined.inputs) == list(together)
    for name in together:
        assert torch.equal(joined.inputs[name], together[name])
    for one, other in zip(joined.inputs.encodings, together.encodings, strict=True):
        for field in FIELDS:
            assert getattr(one, field) == getattr(other, field)
    assert joined.texts == TEXTS


def test_parts_of_a_joined_batch_stay_as_they_were(text_model):
    loaded = load(text_model)
    parts = [loaded.prepare([text]) for text in TEXTS]
    lengths = [len(part.inputs.encodings[0].ids) for part in parts]
    join_batches(parts, loaded.tokenizer)
    assert [len(part.inputs.encodings[0].ids) for part in parts] == lengths


def test_joined_photos(image_model):
    loaded = load(image_model)
    images = [make_photo(), make_photo(30, 50, seed=1)]
    joined = join_batches([loaded.prepare([image]) for image in images])
    together = loaded.prepare(images)
    assert torch.equal(joined.inputs, together.inputs)
    assert joined.notes == together.notes
    assert [one.box for one in joined.photos] == [one.box for one in together.photos]
