"""`whence models`: the embedded models, and what whence sees in one."""

import json

import pytest
from typer.testing import CliRunner

from tests.saved import WORDS, build_tokenizer
from tests.survey.case import build_model
from tests.survey.cases import CASES
from whence import methods
from whence.cli.app import app
from whence.models.folder import list_embedded
from whence.models.tried import read_tried_models


def run_models(*arguments, code=0):
    result = CliRunner().invoke(app, ["models", *map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_the_embedded_models_and_how_to_name_others():
    told = run_models().stdout
    for name in ("pets", "sentiment", "stories", "timm:", "torchvision:", "cat or dog"):
        assert name in told
    entries = json.loads(run_models("--json").stdout)
    embedded = entries["embedded"]
    assert [one["name"] for one in embedded] == list(list_embedded())
    assert all(one["knows"] and one["explains"] for one in embedded)
    assert {"library", "family", "task", "methods", "refused"} <= set(entries["tried"][0])


def test_models_that_were_tried():
    told = run_models().stdout
    assert "language model" in told
    assert "object detection" in told
    (total,) = (line for line in told.splitlines() if line.split()[:1] == ["all"])
    assert int(total.split()[1]) == len(read_tried_models().models)


def test_a_family():
    told = run_models("--family", "gpt2").stdout
    assert "transformers:GPT2LMHeadModel: language model" in told
    assert "methods    whence, tiba, gae" in told
    facts = json.loads(run_models("--family", "gpt2", "--json").stdout)
    assert {one["task"] for one in facts} == {"language model", "text classification"}


def test_a_family_and_a_model():
    assert "not both" in run_models("pets", "--family", "gpt2", code=2).stderr


def test_a_family_that_was_not_tried():
    assert "Did you mean" in run_models("--family", "gtp2", code=2).stderr


def test_a_model_that_needs_python(tmp_path):
    build_model(CASES["transformers:T5ForConditionalGeneration, input_ids"]).save_pretrained(
        tmp_path
    )
    assert "came without its tokenizer" in run_models(tmp_path, code=2).stderr
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    build_tokenizer(words, tmp_path).save_pretrained(tmp_path)
    told = run_models(tmp_path).stdout
    assert "T5ForConditionalGeneration" in told
    assert "scores of input_ids" in told
    assert "Explainer(model).explain(inputs, of='input_ids')" in told


def test_a_classifier_of_photos(image_model):
    told = run_models(image_model).stdout
    assert "ViTForImageClassification classifies photos" in told
    assert "3: cat; dog; crane" in told
    assert "4x4 patches" in told
    assert "maps of 4 heads, of 17 tokens" in told
    facts = json.loads(run_models(image_model, "--json").stdout)
    assert facts["methods"] == methods.available("image")
    assert facts["refused"] == {}
    assert facts["classes"] == {"0": "cat", "1": "dog", "2": "crane"}


def test_a_classifier_of_texts(text_model):
    told = run_models(text_model).stdout
    assert "texts of at most 64 tokens" in told
    assert "tokens of the text, joined to words" in told
    assert "vit_cx" not in told


def test_names_that_are_not_there(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    failed = run_models("stroies", code=2)
    assert "Did you mean 'stories'?" in failed.stderr


@pytest.mark.parametrize("name", ["pets", "stories"])
def test_embedded_models_have_names(name, monkeypatch, tmp_path):
    from whence.models import load

    monkeypatch.chdir(tmp_path)
    assert load(name).title == f"{name} (embedded)"
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="holds no model"):
        load(name)
