"""`whence generate`, on a small model with random weights."""

import json

import pytest
from typer.testing import CliRunner

from tests.cli.commands import list_files
from tests.language import make_llama, make_llama_tokenizer
from whence import Generation
from whence.cli.app import app

PROMPT = "Tim had a red ball. Sue"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = make_llama_tokenizer()
    tokenizer.save_pretrained(folder)
    make_llama(tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_generate(*arguments, code=0, model=folder):
        command = ["generate", *map(str, arguments), "--model", str(model), "--method", "gae"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result

    return run_generate


def test_a_prompt_gets_text_sources_and_files(run, tmp_path):
    result = run(PROMPT, "--tokens", 4)
    name = "tim-had-a-red-ball-sue"
    suffixes = ("csv", "html", "json", "png", "safetensors")
    assert list_files(tmp_path / "whence-out") == [f"{name}.{suffix}" for suffix in suffixes]
    generation = Generation.load(tmp_path / "whence-out" / f"{name}.safetensors")
    assert generation.prompt() == PROMPT
    assert generation.scores.shape[1] == 4
    assert "←" in result.stdout
    assert f"{name}.html" in result.stdout


def test_scores_are_printed_as_json(run):
    data = json.loads(run(PROMPT, "--tokens", 2, "--json", "--by", "token").stdout)
    (sample,) = data["samples"]
    assert len(sample["rows"]) == 2
    assert sample["columns"][0] == "<s>"


def test_passages_by_name(run, tmp_path):
    (tmp_path / "spans.json").write_text('{"ball": "Tim had a red ball."}')
    data = json.loads(run(PROMPT, "--spans", "spans.json", "--json").stdout)
    assert data["samples"][0]["columns"] == ["ball", "rest", "output"]


def test_one_word_in_colours(run):
    stdout = run(PROMPT, "--tokens", 3, "--position", 0).stdout
    assert PROMPT in stdout
    assert "←" not in stdout


def test_quiet_prints_nothing(run):
    assert run(PROMPT, "--tokens", 2, "--quiet").output == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "The prompt is empty."),
        ([PROMPT, "--tokens", 0], "At least one token is generated, not 0."),
        ([PROMPT, "--tokens", 99], "the model has positions for 64: generate at most"),
        ([PROMPT, "--chat"], "has no chat template"),
        ([PROMPT, "--spans", "none.json"], "'none.json' is not there"),
        ([PROMPT, "--tokens", 2, "--position", 7], "There is no generated word 7"),
        ([PROMPT, "--against", "no such token at all"], "tokens of this model"),
    ],
)
def test_wrong_input_is_answered_by_a_sentence(run, arguments, message):
    result = run(*arguments, code=2)
    assert message in result.stderr


def test_a_model_that_does_not_generate(run, text_model):
    result = run(PROMPT, code=2, model=text_model)
    assert "does not generate text. Name a causal language model" in result.stderr


def test_the_next_token_is_explained_like_a_class(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["explain", PROMPT, "--model", str(folder), "--top", "2", "--json"]
    result = CliRunner().invoke(app, [*command, "--method", "gae"])
    assert result.exit_code == 0, result.output
    (entry,) = json.loads(result.stdout)["inputs"]
    assert len(entry["classes"]) == 2
    assert entry["classes"][0]["probability"] >= entry["classes"][1]["probability"]
