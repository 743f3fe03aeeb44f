import json

import pytest

from tests.language import make_llama, make_llama_tokenizer
from whence import WhenceError
from whence.inputs.sources import Source
from whence.methods import MethodSpecification
from whence.models import load_language_model
from whence.pipeline import GenerateSettings, OutputSettings, generate_to_files, read_passages
from whence.pipeline.generate import encode_prompt, read_prompt

TEMPLATE = (
    "{% for turn in messages %}<s>{{ turn.role }}: {{ turn.content }}{% endfor %}"
    "{% if add_generation_prompt %} Sue:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = make_llama_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    make_llama(tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def settings(folder):
    return GenerateSettings(MethodSpecification("gae", "gae", {}, "stable"), str(folder), tokens=3)


def test_a_prompt_is_text_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_prompt("a/b? or *?") == Source("text", text="a/b? or *?")
    (tmp_path / "prompt.md").write_text("Tim had")
    assert read_prompt("prompt.md").read() == "Tim had"
    assert read_prompt("-") == Source("text")
    assert read_prompt("a" * 5000).text == "a" * 5000
    with pytest.raises(WhenceError, match=r"'promt.md' is not there.* Did you mean 'prompt.md'?"):
        read_prompt("promt.md")
    with pytest.raises(WhenceError, match=r"'Once' is no file .* say so with --text"):
        read_prompt("Once")
    for text in ("Once", "-", "prompt.md"):
        assert read_prompt(text, as_text=True) == Source("text", text=text)


def test_chat_templates_are_applied(folder):
    loaded = load_language_model(folder)
    plain = encode_prompt(loaded, "Tim had a ball.")
    chat = encode_prompt(loaded, "Tim had a ball.", chat=True)
    assert loaded.tokenizer.decode(chat["input_ids"][0]).endswith("Tim had a ball. Sue:")
    assert plain["input_ids"].shape[1] < chat["input_ids"].shape[1]
    loaded.tokenizer.chat_template = None
    with pytest.raises(WhenceError, match="has no chat template; leave --chat out"):
        encode_prompt(loaded, "Tim", chat=True)


def test_all_files_tell_the_same(settings, tmp_path):
    counted = []
    result = generate_to_files(
        settings, OutputSettings(tmp_path, "svg"), Source("text", text="Tim had"), counted.append
    )
    assert sum(counted) == len(result.generation.classes())
    assert {file.name for file in tmp_path.iterdir()} == {
        *("tim-had.html", "tim-had.svg", "tim-had.json", "tim-had.csv", "tim-had.safetensors")
    }
    scores = json.loads(result.files["scores"].read_text())["samples"][0]
    assert scores["prompt"] == "Tim had"
    matrix = result.generation.matrix(by="word")
    assert scores["scores"] == matrix.values.tolist()
    with pytest.raises(WhenceError, match="already"):
        generate_to_files(settings, OutputSettings(tmp_path, "svg"), Source("text", text="Tim had"))


def test_a_text_that_is_too_long_for_a_figure_has_the_other_files(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("whence.render.matrix._MOST_COLUMNS", 2)
    result = generate_to_files(
        settings, OutputSettings(tmp_path), Source("text", text="Tim had it")
    )
    assert "figure" not in result.files
    assert "There is no figure: " in result.notes[-1]
    assert all(path.is_file() for path in result.files.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("3", "does not hold passages"),
        ('{"a": [1, 2, 3]}', "does not hold passages"),
        ("[true]", "does not hold passages"),
        (None, "is not there"),
    ],
)
def test_wrong_passages_are_refused(content, message, tmp_path):
    path = tmp_path / "spans.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(WhenceError, match=message):
        read_passages(path)


def test_passages_are_read(tmp_path):
    path = tmp_path / "spans.json"
    path.write_text('{"a": "text", "b": [0, 3]}')
    assert read_passages(path) == {"a": "text", "b": [0, 3]}
