"""`whence explain --text`: photos and sentences that are compared with texts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.commands import list_files, read_summary, run_explain
from tests.saved import save_text_model
from whence import PairExplanation
from whence.cli.app import app

FOLDER = Path(__file__).parents[2] / "examples" / "shapes_clip"
STAR, CROSS = FOLDER / "star.jpg", FOLDER / "cross.jpg"
TEXTS = ("--text", "a blue star", "--text", "an orange circle", "--model", FOLDER)


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_photos_and_texts(tmp_path):
    result = run_explain(STAR, CROSS, *TEXTS, "--method", "gae")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{STAR}: an orange circle (")
    assert lines[1].startswith("  an orange circle ")
    assert " · a blue star " in lines[1]
    assert lines[2] == "  an orange circle"
    assert list_files(tmp_path / "whence-out") == [
        *("cross.png", "cross.safetensors", "star.png", "star.safetensors", "summary.json")
    ]
    saved = PairExplanation.load(tmp_path / "whence-out" / "star.safetensors")
    assert [word for word, _ in saved.compared_words()] == ["an", "orange", "circle"]


@pytest.mark.slow
def test_the_text_that_is_asked_for(tmp_path):
    options = ("--target", "a blue star", "--method", "gae", "--format", "html")
    (entry,) = read_summary(STAR, *TEXTS, *options)
    (explained,) = entry["classes"]
    assert explained["name"] == "a blue star"
    assert [one["word"] for one in explained["words"]] == ["a", "blue", "star"]
    chances = {one["text"]: one["probability"] for one in entry["texts"]}
    assert sum(chances.values()) == pytest.approx(1)
    assert explained["probability"] == pytest.approx(chances["a blue star"], abs=1e-5)
    page = (tmp_path / "whence-out" / "star.html").read_text()
    assert page.count("an orange circle") == 1  # among the texts that fit
    assert ">blue</span>" in page


@pytest.mark.slow
def test_sentences(tmp_path):
    (tmp_path / "encoder").mkdir()
    encoder = save_text_model(tmp_path / "encoder", task="")
    texts = ("--text", "very good", "--text", "it is awful", "--top", "2")
    (entry,) = read_summary("a wonderful film", "--model", encoder, *texts)
    cosines = {one["text"]: one["cosine"] for one in entry["texts"]}
    assert [one["name"] for one in entry["classes"]] == sorted(cosines, key=lambda t: -cosines[t])
    assert [one["word"] for one in entry["classes"][0]["words"]] == (
        entry["classes"][0]["name"].split()
    )
    printed = run_explain("a wonderful film", "--model", encoder, *texts, "--force").stdout
    assert printed.count("a wonderful film\n") == 2
    assert "very good\n" in printed


@pytest.mark.slow
def test_a_report(tmp_path):
    arguments = ["report", STAR, *TEXTS, "--top", "2", "--out", "page.html"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "page.html").read_text().count("an orange circle") > 1


@pytest.mark.slow
def test_rows_of_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    from whence import open_result

    run_explain(STAR, CROSS, *TEXTS, "--method", "gae", "--format", "parquet", "--out", "rows")
    stored = open_result(tmp_path / "rows")
    assert len(stored) == 2
    names = [stored[name].target_names[0] for name in stored]
    assert sorted(names) == ["a blue star", "an orange circle"]


def test_text_without_a_value_or_an_input(tmp_path, embedded):
    for number, arguments in enumerate((("good", "--text", "--quiet"), ("--text", "good"))):
        (entry,) = read_summary(*arguments, "--out", f"out{number}")
        assert (entry["input"], entry["kind"]) == ("good", "text")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((STAR, "--model", FOLDER), "compares images with texts, and none are named"),
        ((STAR, "--text", "a star"), "the embedded models do not: name a model that does"),
        ((STAR, *TEXTS, "--text", " "), "A text to compare with is empty"),
        ((STAR, *TEXTS, "--text", "a blue star"), "'a blue star' is named twice"),
        ((STAR, *TEXTS, "--target", "a dog"), "There is no class 'a dog'"),
        ((), "Nothing to explain"),
    ],
)
def test_what_is_refused(arguments, message):
    assert message in run_explain(*arguments, code=2).stderr


def test_sentences_for_a_model_of_photos():
    refused = run_explain("a blue star", *TEXTS, code=1)
    assert "explains images, not texts" in refused.stderr


def test_a_classifier_compares_nothing(image_model):
    refused = run_explain(STAR, "--model", image_model, "--text", "a star", code=2)
    assert "compares nothing with texts. Name one that does" in refused.stderr
