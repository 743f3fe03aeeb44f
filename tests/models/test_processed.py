"""Models that only Python code prepares inputs for: a sample by their own processor."""

import pytest

from tests.saved import WORDS, build_tokenizer
from tests.survey.case import build_model
from tests.survey.cases import CASES
from whence import WhenceError, methods
from whence.models.processed import NoSampleError, describe_processed

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##ly", "##s"]


@pytest.fixture
def translator(tmp_path):
    """A folder that holds a T5 with a tokenizer."""
    build_model(CASES["transformers:T5ForConditionalGeneration, input_ids"]).save_pretrained(
        tmp_path
    )
    build_tokenizer(VOCABULARY, tmp_path).save_pretrained(tmp_path)
    return tmp_path


def test_an_encoder_decoder(translator):
    described = describe_processed(str(translator))
    assert described.architecture == "T5ForConditionalGeneration"
    assert described.inputs["decoder_input_ids"] == [1, 1]
    assert {"gae", "input_x_gradient"} <= set(described.methods["input_ids"])
    refused = [name for names in described.refused["input_ids"].values() for name in names]
    assert sorted([*described.methods["input_ids"], *refused]) == methods.available()


def test_a_speech_recogniser(tmp_path):
    from transformers import Wav2Vec2FeatureExtractor

    model = build_model(CASES["transformers:Wav2Vec2ForCTC"])
    model.save_pretrained(tmp_path)
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    described = describe_processed(str(tmp_path))
    assert described.inputs["input_values"] == [1, 4000]
    assert "input_x_gradient" in described.methods["input_values"]


def test_a_model_without_a_processor(tmp_path):
    build_model(CASES["transformers:T5ForConditionalGeneration, input_ids"]).save_pretrained(
        tmp_path
    )
    with pytest.raises(NoSampleError, match="came without its tokenizer"):
        describe_processed(str(tmp_path))


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(WhenceError, match="cannot be loaded"):
        describe_processed(str(tmp_path))
