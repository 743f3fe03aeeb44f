"""The folder of a model, and what it says that the model knows."""

import json
import shutil
from pathlib import Path

import pytest

from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.models import load
from whence.models.folder import EMBEDDED, EMBEDDED_LANGUAGE_MODEL, read_knowledge


@pytest.mark.parametrize("folder", [*EMBEDDED.values(), EMBEDDED_LANGUAGE_MODEL])
def test_embedded_models_say_what_they_know(folder: Path) -> None:
    assert 10 < len(read_knowledge(folder)) < 120


def test_a_result_says_what_its_model_knows_and_keeps_it(tmp_path: Path) -> None:
    folder = shutil.copytree(EMBEDDED["text"], tmp_path / "mine")
    (folder / "whence.json").write_text(json.dumps({"knows": "good\nor bad."}))
    loaded = load(folder)
    result = loaded.explain(loaded.prepare(["a fine film"]))
    result.save(tmp_path / "a.safetensors")
    assert result.model_knows == "good or bad"
    assert Explanation.load(tmp_path / "a.safetensors").model_knows == "good or bad"
    assert ("it knows", "good or bad") in result.provenance


def test_a_folder_without_the_file_says_nothing(tmp_path: Path) -> None:
    assert read_knowledge(tmp_path) == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"knows": 3}', '{"knows": " "}', "\xff"])
def test_a_file_that_says_nothing_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "whence.json").write_text(content, encoding="latin-1")
    with pytest.raises(WhenceError, match="should say what the model knows"):
        read_knowledge(tmp_path)
