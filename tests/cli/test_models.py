"""`whence models`: the embedded models, and what whence sees in one."""

import json

import pytest
from typer.testing import CliRunner

from whence import methods
from whence.cli.app import app
from whence.models.loaded import list_embedded


def run_models(*arguments, code=0):
    result = CliRunner().invoke(app, ["models", *map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_the_embedded_models_and_how_to_name_others():
    told = run_models().stdout
    for name in ("pets", "sentiment", "stories", "timm:", "torchvision:", "cat or dog"):
        assert name in told
    entries = json.loads(run_models("--json").stdout)
    assert [one["name"] for one in entries] == list(list_embedded())
    assert all(one["knows"] and one["explains"] for one in entries)


def test_a_classifier_of_photos(image_model):
    told = run_models(image_model).stdout
    assert "ViTForImageClassification classifies photos" in told
    assert "3: cat; dog; crane" in told
    assert "4x4 patches" in told
    assert "maps of 4 heads, of 17 tokens" in told
    facts = json.loads(run_models(image_model, "--json").stdout)
    assert facts["methods"] == methods.available()
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
