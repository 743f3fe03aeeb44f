"""whence generate --image: text after images, with maps of the images."""

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.docs.hub import save_vision_language_model
from whence import Explanations, Generation
from whence.cli.app import app


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small-llava"
    torch.manual_seed(0)
    folder.mkdir()
    save_vision_language_model(folder)
    return folder


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "cat.png"
    Image.effect_noise((60, 40), 90).convert("RGB").save(path)
    return path


def run(*words):
    return CliRunner().invoke(app, ["generate", *map(str, words)])


def test_text_after_an_image_has_maps(llava, photo, tmp_path):
    shown = run(
        "What is on it?", "--image", photo, "--model", llava, "--tokens", 2, "--out", tmp_path
    )
    assert shown.exit_code == 0, shown.output
    (saved,) = tmp_path.glob("*.safetensors")
    result = Explanations.load(saved)
    assert isinstance(result["input_ids"], Generation)
    assert result["input_ids"].prompt().strip() == "What is on it?"
    assert result["pixel_values"].scores.shape == (1, 2, 16)
    assert result["pixel_values"].model == "small-llava"
    (figure,) = tmp_path.glob("*.png")
    assert Image.open(figure).size[0] > 400
    assert {path.suffix for path in tmp_path.iterdir()} == {
        ".png",
        ".html",
        ".json",
        ".safetensors",
    }


def test_wrong_input_is_told(llava, photo, tmp_path):
    asked = ("What is on it?", "--out", tmp_path)
    assert "name one with --model" in _say(run(*asked, "--image", photo))
    assert "is not there" in _say(run(*asked, "--image", tmp_path / "no.jpg", "--model", llava))
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in _say(run(*asked, "--image", photo, "--model", tmp_path / "empty"))
    assert list(tmp_path.glob("*.*")) == []


def _say(shown):
    assert shown.exit_code != 0
    return " ".join((shown.output + str(shown.exception)).split())


def test_a_prompt_may_mark_its_image(llava):
    from whence.models.vision_language import load_vision_language_model

    model, image = load_vision_language_model(str(llava)), Image.new("RGB", (32, 32))
    mark = model.processor.image_token
    marked = model.encode(f"{mark} what", [image])["input_ids"]
    assert marked.tolist() == model.encode("what", [image])["input_ids"].tolist()
