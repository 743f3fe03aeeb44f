import pytest

from tests.zoo import CASES, build_model
from whence import WhenceError
from whence.models import load
from whence.models.loaded import select_sample
from whence.models.text_preprocessing import find_position_limit


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
