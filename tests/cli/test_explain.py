"""`whence explain`, on small models in the place of the embedded ones."""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.cli.commands import list_files, read_summary, run_explain
from tests.saved import make_dot, make_photo
from whence import Explanation


def test_a_photo(two_photos):
    result = run_explain("one.png")
    assert list_files(two_photos / "whence-out") == ["one.png", "one.safetensors", "summary.json"]
    assert "one.png: " in result.stdout
    assert re.search(r"one.png: \w+ \([\d.]+%\)", result.stdout)
    assert "\nModel " in result.stdout
    assert "whence-out/one.png" in result.stdout
    explanation = Explanation.load(two_photos / "whence-out" / "one.safetensors")
    assert explanation.scores.shape == (1, 16)


def test_a_text(two_photos):
    result = run_explain("a wonderful film")
    assert list_files(two_photos / "whence-out") == [
        "a-wonderful-film.html",
        "a-wonderful-film.safetensors",
        "summary.json",
    ]
    assert "wonderful" in result.stdout
    assert "%)" in result.stdout
    refused = run_explain("a wonderful film", "--outlines", code=2)
    assert "--outlines is for photos" in refused.stderr


def test_rows_of_a_table(two_photos):
    (two_photos / "reviews.csv").write_text("text,label\na good film,1\n,0\n")
    one, empty = read_summary("reviews.csv", code=1)
    assert (one["name"], one["input"]) == ("reviews.csv-1", "reviews.csv, row 1")
    assert one["classes"]
    assert empty["error"] == "The text is empty."
    assert (two_photos / "whence-out" / "reviews.csv-1.html").is_file()


def test_precision_is_a_setting(two_photos):
    (entry,) = read_summary("one.png", "--precision", "bfloat16", "--method", "tiba")
    assert entry["settings"]["precision"] == "bfloat16"
    coarse = Explanation.load(two_photos / "whence-out" / "one.safetensors")
    (entry,) = read_summary("one.png", "--method", "tiba", "--force")
    assert "precision" not in entry["settings"]
    exact = Explanation.load(two_photos / "whence-out" / "one.safetensors")
    assert 0 < (coarse.scores - exact.scores).norm() < 0.2 * exact.scores.norm()


def test_which_input_gets_scores(two_photos):
    (entry,) = read_summary("one.png", "--of", "pixel_values")
    assert entry["settings"]["of"] == "pixel_values"
    (entry,) = read_summary("a good film", "--of", "input_ids", "--force")
    assert entry["settings"]["of"] == "input_ids"
    failed = run_explain("a good film", "--of", "pixel_values", "--force", code=2)
    assert "names no tensor of the inputs; they hold 'input_ids'" in failed.stderr


def test_targets(two_photos):
    (entry,) = read_summary("one.png", "--target", "dog", "--target", "0")
    assert [one["name"] for one in entry["classes"]] == ["dog", "cat"]
    assert Explanation.load(two_photos / "whence-out" / "one.safetensors").scores.shape == (
        1,
        2,
        16,
    )


def test_standard_input(two_photos):
    (entry,) = read_summary("-", stdin="a good film")
    assert (entry["name"], entry["input"]) == ("stdin", "standard input")
    assert "is empty" in run_explain("-", "--force", stdin=" \n", code=1).stderr


def test_five_thousand_words_are_cut_and_it_is_said(two_photos):
    (two_photos / "long.txt").write_text("good " * 5000)
    assert "Note: cut at 64 of 5002 tokens" in run_explain("long.txt").stdout


def test_a_note_of_many_inputs_is_said_once(two_photos):
    (two_photos / "long.txt").write_text("good " * 100)
    (two_photos / "longer.txt").write_text("good " * 200)
    told = run_explain("long.txt", "longer.txt", "a good film").stdout
    assert told.count("Note: ") == 1
    assert "Note: cut at 64 of 102 to 202 tokens" in told
    assert "(2 of 3 texts)." in told


def test_all_checks_are_in_the_summary(two_photos):
    (entry,) = read_summary("one.png", "--verify", "--method", "tiba")
    names = [check["name"] for check in entry["checks"]]
    assert names == ["logits", "conservation", "coverage", "dead", "layout"]
    assert {check["status"] for check in entry["checks"]} == {"passed"}


@pytest.mark.parametrize("text", ["🎉🎉", "film 🎉", "סרט נפלא", "فيلم رائع film", "🏳️‍🌈"])
def test_emoji_and_right_to_left(text, two_photos):
    result = run_explain(text)
    entry = json.loads((two_photos / "whence-out" / "summary.json").read_text())["inputs"][0]
    assert entry["input"] == text
    assert entry["name"]
    assert "[UNK]" not in result.stdout


def test_odd_photos(two_photos):
    from PIL import Image

    Image.new("I;16", (20, 20), 40_000).save("deep.png")
    Image.new("CMYK", (20, 20)).save("print.jpg")
    make_photo().convert("P").save("palette.png")
    make_dot().save("dot.png")
    make_photo(12_000, 8).save("wide.png")
    entries = read_summary("deep.png", "print.jpg", "palette.png", "dot.png", "wide.png")
    assert not any(entry["error"] for entry in entries)


def test_quiet_and_svg(two_photos):
    (two_photos / "fake.jpg").write_text("")
    result = run_explain("one.png", "fake.jpg", "--quiet", "--format", "svg", code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("fake.jpg: ")
    assert (two_photos / "whence-out" / "one.svg").read_text().startswith(("<svg", "<?xml"))


def test_figures_as_jpeg(two_photos):
    from PIL import Image

    (entry,) = read_summary("one.png", "--format", "jpg")
    assert entry["files"] == {"figure": "one.jpg", "explanation": "one.safetensors"}
    run_explain("one.png", "--out", "as-png")
    with (
        Image.open(two_photos / "whence-out" / "one.jpg") as jpeg,
        Image.open(two_photos / "as-png" / "one.png") as png,
    ):
        assert (jpeg.format, jpeg.size) == ("JPEG", png.size)
    (page,) = read_summary("A wonderful film", "--format", "jpg", "--out", "texts")
    assert page["files"]["page"].endswith(".html")


def test_a_timm_model_with_a_weights_file(two_photos):
    timm = pytest.importorskip("timm")
    save_file(timm.create_model("test_vit").state_dict(), "w.safetensors")
    (entry,) = read_summary("one.png", "--model", "timm:test_vit", "--weights", "w.safetensors")
    assert entry["model"] == "timm:test_vit"
    assert not entry["classes"][0]["name"].isdigit()


def test_progress_is_shown_in_a_terminal_for_many(two_photos, monkeypatch):
    from whence.cli import explain as cli

    monkeypatch.setattr(cli, "_is_many_in_terminal", lambda count: count > 1)
    result = run_explain("one.png", "two.jpg")
    assert result.stdout.index("one.png") < result.stdout.index("two.jpg")
    assert "Explaining" not in result.stdout


def test_several_classes_of_a_text(two_photos):
    told = run_explain("good film", "--target", "negative", "--target", "positive").stdout
    assert "For negative:" in told
    assert "For positive:" in told


def test_the_default_method_and_its_settings(two_photos):
    (entry,) = read_summary("one.png")
    assert entry["method"] == "whence"
    assert entry["settings"] == {
        "reading": "evidence",
        "start_layer": 0,
        "gradients": None,
        "sharing": None,
    }


def test_options_of_the_method(two_photos):
    given = ("gradients=balanced", "start_layer=1", "normalize_rows=true")
    options = [word for one in given for word in ("-o", one)]
    (entry,) = read_summary("one.png", "--method", "tiba", "--rules", "reference", *options)
    assert entry["settings"] == {
        "rules": "reference",
        "start_layer": 1,
        "normalize_rows": True,
        "gradients": "balanced",
    }
    assert entry["class_specific"] is True


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("gradients", "given as NAME=VALUE, not 'gradients'"),
        ("gradient=plain", "'whence' has no option 'gradient'. Its options: reading,"),
        (
            "gradients=odd",
            "'gradients' of method 'whence' must be 'plain' or 'balanced' or 'residual' or None, "
            "not 'odd'",
        ),
        ("start_layer=one", "'start_layer' of method 'whence' must be a whole number, not 'one'"),
        ("start_layer=9", "start_layer=9 does not exist"),
    ],
)
def test_wrong_options_of_the_method(two_photos, option, message):
    assert message in run_explain("one.png", "-o", option, code=2).output


def test_empty_text_is_not_the_current_folder(two_photos):
    (entry,) = read_summary("", code=1)
    assert entry["error"] == "The text is empty."


def test_an_empty_folder_or_glob_does_not_stop_the_rest(two_photos):
    (two_photos / "nothing").mkdir()
    failed, missed, good = read_summary("nothing", "none*.jpg", "one.png", code=1)
    assert "holds no photo" in failed["error"]
    assert "No photo or text file matches" in missed["error"]
    assert good["error"] is None


def test_places_that_may_not_be_looked_at(two_photos, monkeypatch):
    ask = Path.stat

    def stat(self, **options):
        if "locked" in self.parts:
            raise PermissionError(13, "Permission denied")
        return ask(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    hidden, good = read_summary("locked/in.jpg", "one.png", code=1)
    assert "not there, or may not be read" in hidden["error"]
    assert good["error"] is None
    assert (
        "There is no folder"
        in run_explain("one.png", "--model", "./locked/m", "--force", code=2).stderr
    )


def test_control_characters_do_not_reach_the_terminal(two_photos):
    make_photo().save("a\x1b[31mb.png")
    assert "\x1b[31m" not in run_explain("a\x1b[31mb.png").stdout


def test_a_model_without_its_tokenizer_is_refused(two_photos, text_model):
    shutil.copytree(text_model, "bare")
    for file in (two_photos / "bare").iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    result = run_explain("a film", "--model", "./bare", code=2)
    assert "tokenizer" in result.stderr
