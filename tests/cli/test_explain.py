"""The command line, on small models in the place of the embedded ones."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import whence as whence_package
from tests.saved import photo, save_image_model
from whence import Explanation, __version__, methods
from whence.cli.app import app


@pytest.fixture
def here(tmp_path, monkeypatch, embedded):
    """A folder to work in, with two photos."""
    monkeypatch.chdir(tmp_path)
    photo().save("one.png")
    photo(30, 50, seed=1).save("two.jpg")
    return tmp_path


def whence(*arguments: str, code: int = 0, stdin=None):
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result


def summary(*arguments, **options):
    """The inputs of a summary, which is all that --json prints."""
    return json.loads(whence(*arguments, "--json", **options).stdout)["inputs"]


def written(folder) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_photo(here):
    result = whence("one.png")
    assert written(here / "whence-out") == ["one.png", "one.safetensors", "summary.json"]
    assert "one.png: " in result.stdout
    assert "most of all because of the " in result.stdout
    assert "whence-out/one.png" in result.stdout
    explanation = Explanation.load(here / "whence-out" / "one.safetensors")
    assert explanation.scores.shape == (1, 16)


def test_a_text(here):
    result = whence("a wonderful film")
    assert written(here / "whence-out") == [
        "a-wonderful-film.html",
        "a-wonderful-film.safetensors",
        "summary.json",
    ]
    assert "wonderful" in result.stdout
    assert "%)" in result.stdout


def test_rows_of_a_table(here):
    (here / "reviews.csv").write_text("text,label\na good film,1\n,0\n")
    one, empty = summary("reviews.csv", code=1)
    assert (one["name"], one["input"]) == ("reviews.csv-1", "reviews.csv, row 1")
    assert one["classes"]
    assert empty["error"] == "The text is empty."
    assert (here / "whence-out" / "reviews.csv-1.html").is_file()


def test_the_summary(here):
    photos = summary("one.png", "two.jpg", "--top", "2")
    assert [entry["name"] for entry in photos] == ["one", "two"]
    for entry in photos:
        assert entry["kind"] == "image"
        assert entry["files"]["figure"] == f"{entry['name']}.png"
        assert len(entry["classes"]) == 2
        one = entry["classes"][0]
        assert one["name"] in ("cat", "dog", "crane")
        assert 0 < one["probability"] < 1
        assert {"row", "column", "score"} == set(one["top"][0])
        assert entry["error"] is None
    (text,) = summary("a good film", "--target", "positive")
    assert text["classes"][0]["name"] == "positive"
    assert {top["word"] for top in text["classes"][0]["top"]} == {"a", "good", "film"}
    folder = json.loads((here / "whence-out" / "summary.json").read_text())
    assert [entry["name"] for entry in folder["inputs"]] == ["one", "two", "a-good-film"]


def test_photos_and_texts_together_each_with_its_model(here):
    (here / "review.txt").write_text("good")
    entries = summary(".", "--batch", "1")
    assert [entry["name"] for entry in entries] == ["one", "review", "two"]
    assert [entry["kind"] for entry in entries] == ["image", "text", "image"]


def test_batches_give_the_same_as_one_by_one(here):
    for number in range(5):
        photo(40 + number, 50, seed=number).save(f"p{number}.png")
    whence("p*.png", "--out", "together")
    whence("p*.png", "--out", "alone", "--batch", "1")
    for number in range(5):
        both = [
            Explanation.load(here / out / f"p{number}.safetensors") for out in ("together", "alone")
        ]
        assert torch.allclose(both[0].scores, both[1].scores, atol=1e-6)


def test_fast_compiles_for_full_batches(here, programs):
    for number in range(7):
        photo(40 + number, 50, seed=number).save(f"p{number}.png")
    asked = ("p*.png", "--batch", "2", "--method", "tiba")
    whence(*asked, "--out", "plain")
    assert programs == []
    whence(*asked, "--out", "fast", "--compile")
    ((pixels,),) = programs
    assert len(pixels) == 2
    for number in range(7):
        plain, fast = (
            Explanation.load(here / out / f"p{number}.safetensors") for out in ("plain", "fast")
        )
        assert torch.allclose(fast.scores, plain.scores, rtol=1e-3, atol=1e-6)
        assert fast.settings == plain.settings


def test_fast_compiles_nothing_for_texts_of_different_lengths(here, programs):
    texts = ["good", "a good film", "the film is good", "a wonderful film and very good ."]
    assert len(summary(*texts, "--batch", "1", "--compile")) == 4
    assert programs == []


def test_precision_is_told(here):
    (entry,) = summary("one.png", "--precision", "bfloat16", "--method", "tiba")
    assert entry["settings"]["precision"] == "bfloat16"
    coarse = Explanation.load(here / "whence-out" / "one.safetensors")
    (entry,) = summary("one.png", "--method", "tiba", "--force")
    assert "precision" not in entry["settings"]
    exact = Explanation.load(here / "whence-out" / "one.safetensors")
    assert 0 < (coarse.scores - exact.scores).norm() < 0.2 * exact.scores.norm()


def test_targets(here):
    (entry,) = summary("one.png", "--target", "dog", "--target", "0")
    assert [one["name"] for one in entry["classes"]] == ["dog", "cat"]
    assert Explanation.load(here / "whence-out" / "one.safetensors").scores.shape == (1, 2, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "kat"], "There is no class 'kat'. Nearest: 'cat'"),
        (["--target", "7"], "Class 7 does not exist"),
        (["--top", "9"], "the model has 3 classes"),
        (["--top", "2", "--target", "cat"], "either --target or --top"),
        (["--method", "tibba"], "no method 'tibba'. Did you mean 'tiba'"),
        (["--rules", "lax"], "lax"),
        (["--start-layer", "9"], "start_layer=9 does not exist"),
        (["--model", "./none"], "There is no folder './none'"),
        (["--weights", "w.safetensors"], "timm:NAME and torchvision:NAME only"),
        (["--device", "cpu", "--precision", "tf32"], "The precision tf32 is one of GPUs"),
        (["--device", "toaster"], "There is no device 'toaster'"),
        (["--out", "one.png"], "'one.png' cannot be written to"),
        (["--out", "one.png/deeper"], "cannot be written to"),
        (["--out", "/proc/nothing"], "'/proc/nothing' cannot be written to"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message, here):
    result = whence("one.png", *arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    out = here / "whence-out"
    assert not out.exists() or not written(out)


@pytest.mark.parametrize(
    "arguments",
    [["--precision", "fp8"], ["--batch", "0"], ["--top", "0"], ["--format", "bmp"], ["--no"]],
)
def test_usage(arguments, here):
    whence("one.png", *arguments, code=2)


def test_a_folder_that_turns_unwritable(here, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert "No space left on device" in whence("one.png", code=2).stderr


def test_bad_inputs_are_named_and_the_rest_goes_on(here):
    (here / "fake.jpg").write_text("not a photo")
    content = (here / "two.jpg").read_bytes()
    (here / "cut.jpg").write_bytes(content[: len(content) // 2])
    (here / "empty.txt").write_text("")
    result = whence("none.jpg", "fake.jpg", "one.png", "cut.jpg", "empty.txt", "good", code=1)
    for name in ("none.jpg", "fake.jpg", "cut.jpg", "empty.txt"):
        assert result.stderr.count(f"{name}: ") == 1
    assert len(result.stderr.splitlines()) == 4
    assert written(here / "whence-out") == [
        *("good.html", "good.safetensors", "one.png", "one.safetensors", "summary.json")
    ]
    entries = json.loads((here / "whence-out" / "summary.json").read_text())["inputs"]
    assert [bool(entry["error"]) for entry in entries] == [True, True, False, True, True, False]


def test_inputs_of_the_other_kind(here, image_model):
    result = whence("one.png", "good film", "--model", image_model, code=1)
    assert "good film: The model" in result.stderr
    assert "explains images, not texts" in result.stderr
    assert "one.png" in written(here / "whence-out")


def test_nothing_is_written_over_without_force(here):
    whence("one.png")
    before = (here / "whence-out" / "one.safetensors").stat().st_mtime_ns
    result = whence("two.jpg", "one.png", "--target", "dog", code=2)
    assert "one.png' and 1 more exist already. Give --force" in result.stderr
    assert written(here / "whence-out") == ["one.png", "one.safetensors", "summary.json"]
    assert (here / "whence-out" / "one.safetensors").stat().st_mtime_ns == before
    (entry,) = summary("one.png", "--target", "dog", "--force")
    assert entry["classes"][0]["name"] == "dog"
    assert len(json.loads((here / "whence-out" / "summary.json").read_text())["inputs"]) == 1


def test_a_summary_of_someone_else_is_not_written_over(here):
    (here / "out").mkdir()
    (here / "out" / "summary.json").write_text("[1]")
    assert "is no summary of whence" in whence("one.png", "--out", "out", code=2).stderr
    assert (here / "out" / "summary.json").read_text() == "[1]"
    whence("one.png", "--out", "out", "--force")


def test_inputs_of_the_same_name(here):
    for folder in ("a", "b"):
        (here / folder).mkdir()
        photo().save(here / folder / "One.png")
    (here / "one.txt").write_text("good")
    entries = summary("one.png", "a", "b", "one.txt")
    assert [entry["name"] for entry in entries] == ["one", "One-2", "One-3", "one-4"]


def test_standard_input(here):
    (entry,) = summary("-", stdin="a good film")
    assert (entry["name"], entry["input"]) == ("stdin", "standard input")
    assert "is empty" in whence("-", "--force", stdin=" \n", code=1).stderr


def test_five_thousand_words_are_cut_and_it_is_said(here):
    (here / "long.txt").write_text("good " * 5000)
    assert "Note: cut at 64 of 5002 tokens" in whence("long.txt").stdout


@pytest.mark.parametrize("text", ["🎉🎉", "film 🎉", "סרט נפלא", "فيلم رائع film", "🏳️‍🌈"])
def test_emoji_and_right_to_left(text, here):
    result = whence(text)
    entry = json.loads((here / "whence-out" / "summary.json").read_text())["inputs"][0]
    assert entry["input"] == text
    assert entry["name"]
    assert "[UNK]" not in result.stdout


def test_odd_photos(here):
    from PIL import Image

    Image.new("I;16", (20, 20), 40_000).save("deep.png")
    Image.new("CMYK", (20, 20)).save("print.jpg")
    photo().convert("P").save("palette.png")
    photo(1, 1).save("dot.png")
    photo(12_000, 8).save("wide.png")
    entries = summary("deep.png", "print.jpg", "palette.png", "dot.png", "wide.png")
    assert not any(entry["error"] for entry in entries)


def test_quiet_and_svg(here):
    (here / "fake.jpg").write_text("")
    result = whence("one.png", "fake.jpg", "--quiet", "--format", "svg", code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("fake.jpg: ")
    assert (here / "whence-out" / "one.svg").read_text().startswith(("<svg", "<?xml"))


def test_a_warning_is_a_sentence(here):
    result = whence("one.png", "--rules", "reference")
    assert result.stderr.startswith("Note: Method 'whence' propagates no relevance, so that rules=")
    assert result.stderr.count("\n") == 1


def test_a_timm_model_with_a_weights_file(here):
    timm = pytest.importorskip("timm")
    save_file(timm.create_model("test_vit").state_dict(), "w.safetensors")
    (entry,) = summary("one.png", "--model", "timm:test_vit", "--weights", "w.safetensors")
    assert entry["model"] == "timm:test_vit"
    assert not entry["classes"][0]["name"].isdigit()


def test_a_model_that_fails_now_and_then(here, monkeypatch):
    from whence.models import LoadedModel

    explain = LoadedModel.explain

    def moody(self, prepared, **request):
        if len(prepared.contents) > 1 or prepared.contents[0].size == (30, 50):
            raise RuntimeError("out of\nluck")
        return explain(self, prepared, **request)

    monkeypatch.setattr(LoadedModel, "explain", moody)
    result = whence("one.png", "two.jpg", code=1)
    assert "two.jpg: Model or method failed: RuntimeError: out of." in result.stderr
    assert "one.png: " in result.stdout
    result = whence("two.jpg", "--out", "other", code=2)
    assert result.stderr == "Error: Model or method failed: RuntimeError: out of.\n"


def test_progress_is_shown_in_a_terminal_for_many(here, monkeypatch):
    from whence.cli import explain as cli

    monkeypatch.setattr(cli, "_is_many_in_terminal", lambda count: count > 1)
    result = whence("one.png", "two.jpg")
    assert result.stdout.index("one.png") < result.stdout.index("two.jpg")
    assert "Explaining" not in result.stdout


def test_what_was_done_before_an_interruption_is_told(here, monkeypatch):
    from whence.models import LoadedModel

    explain = LoadedModel.explain

    def interrupted(self, prepared, **request):
        if prepared.contents[0].size == (30, 50):
            raise KeyboardInterrupt
        return explain(self, prepared, **request)

    monkeypatch.setattr(LoadedModel, "explain", interrupted)
    whence("one.png", "two.jpg", "--batch", "1", code=130)
    assert written(here / "whence-out") == ["one.png", "one.safetensors", "summary.json"]
    (entry,) = json.loads((here / "whence-out" / "summary.json").read_text())["inputs"]
    assert entry["name"] == "one"


def test_several_classes_of_a_text(here):
    told = whence("good film", "--target", "negative", "--target", "positive").stdout
    assert "For negative:" in told
    assert "For positive:" in told


def test_a_method_is_described():
    told = CliRunner().invoke(app, ["methods", "tiba"]).stdout
    assert "Chefer, Gur, Wolf" in told
    assert "class-specific" in told
    assert "cost in forward passes: 5" in told
    assert "start_layer: a whole number = 0" in told
    assert "gradients: 'plain' or 'balanced' = 'plain'" in told
    wrong = CliRunner().invoke(app, ["methods", "tibba"])
    assert wrong.exit_code == 2
    assert "Did you mean 'tiba'?" in wrong.output


def test_the_default_method_and_its_settings(here):
    (entry,) = summary("one.png")
    assert entry["method"] == "whence"
    assert entry["settings"] == {"sharing": None, "start_layer": 0, "gradients": "balanced"}


def test_options_of_the_method(here):
    given = ("gradients=balanced", "start_layer=1", "normalize_rows=true")
    options = [word for one in given for word in ("-o", one)]
    (entry,) = summary("one.png", "--method", "tiba", "--rules", "reference", *options)
    assert entry["settings"] == {
        "rules": "reference",
        "start_layer": 1,
        "normalize_rows": True,
        "gradients": "balanced",
    }
    assert entry["class_specific"] is True


def test_a_method_for_photos_fails_texts_beside_them(here):
    pytest.importorskip("sklearn")
    entries = summary("one.png", "good", "--method", "vit_cx", code=1)
    assert [entry["error"] for entry in entries] == [
        None,
        "Method 'vit_cx' explains images only.",
    ]
    alone = whence("good", "--method", "vit_cx", "--out", "other", code=2)
    assert "'vit_cx' explains images only" in alone.output


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("gradients", "given as NAME=VALUE, not 'gradients'"),
        ("gradient=plain", "'whence' has no option 'gradient'. Its options: sharing,"),
        (
            "gradients=odd",
            "'gradients' of method 'whence' must be 'plain' or 'balanced', not 'odd'",
        ),
        ("start_layer=one", "'start_layer' of method 'whence' must be a whole number, not 'one'"),
        ("start_layer=9", "start_layer=9 does not exist"),
    ],
)
def test_wrong_options_of_the_method(here, option, message):
    assert message in whence("one.png", "-o", option, code=2).output


NEW_METHOD = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.methods.registry import Method, register


@register("corner")
@dataclass(frozen=True)
class Corner(Method):
    """Everything comes from one corner of the photo."""

    class_specific: ClassVar[bool] = False

    last: bool = False

    def __call__(self, evidence: Evidence) -> Tensor:
        scores = torch.zeros_like(evidence.pooling)
        scores[..., -1 if self.last else evidence.layout.prefix] = 1
        return scores
'''


def test_a_new_method_is_one_file(here):
    """Put into the folder of methods, it is in the command line with its options and its label."""
    package = Path(whence_package.__file__).parent
    shutil.copytree(package, "src/whence", ignore=shutil.ignore_patterns("__pycache__"))
    Path("src/whence/methods/corner.py").write_text(NEW_METHOD)

    def run(*arguments: str) -> str:
        script = "import tests.conftest\nfrom whence.cli.app import app\napp()"
        command = [sys.executable, "-c", script, *arguments]
        path = os.pathsep.join(("src", str(Path(__file__).parents[2])))
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"corner +no +Everything comes from one corner", run("methods"))
    told = run("explain", "one.png", "--method", "corner", "-o", "last=true", "--json")
    (entry,) = json.loads(told)["inputs"]
    assert entry["settings"] == {"last": True}
    assert entry["notes"] == ["corner is the same for every class"]
    columns = Explanation.load("whence-out/one.safetensors").grid[1]
    assert entry["classes"][0]["top"][0]["column"] == columns - 1


def test_methods_and_version():
    result = CliRunner().invoke(app, ["methods"])
    assert result.exit_code == 0
    for name in methods.available():
        about = methods.describe(name)
        by_class = "yes" if about.class_specific else "no"
        begins = re.escape(" ".join(about.summary.split()[:3]))
        assert re.search(rf"^ ?{name} +{by_class} +{begins}", result.stdout, re.MULTILINE), name
    assert re.search(r"tiba +yes +Gradient-weighted relevance of every attention", result.stdout)
    assert CliRunner().invoke(app, ["--version"]).stdout == f"whence {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "--help"], ["--version"]])
def test_help_answers_without_torch(arguments):
    script = (
        "import sys\nfrom whence.cli.app import app\ntry:\n    app(sys.argv[1:])\nfinally:\n    "
        "assert not {'torch', 'transformers', 'timm'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_shell_completion(monkeypatch):
    # Otherwise the shell is looked for among the processes that started the tests.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="whence")
    assert shown.exit_code == 0
    assert "_WHENCE_COMPLETE=complete_bash" in shown.stdout
    environment = {
        "_WHENCE_COMPLETE": "complete_bash",
        "COMP_WORDS": "whence explain --method ti",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="whence")
    assert "tiba" in done.stdout


# Odd inputs among good ones ----------------------------------------------------------------------


def test_empty_text_is_not_the_current_folder(here):
    (entry,) = summary("", code=1)
    assert entry["error"] == "The text is empty."


def test_an_empty_folder_or_glob_does_not_stop_the_rest(here):
    (here / "nothing").mkdir()
    failed, missed, good = summary("nothing", "none*.jpg", "one.png", code=1)
    assert "holds no photo" in failed["error"]
    assert "No photo or text file matches" in missed["error"]
    assert good["error"] is None


def test_a_file_name_that_is_not_utf_8(here):
    name = b"bad\xff.png"
    try:
        photo().save(name.decode("utf-8", "surrogateescape"), format="PNG")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    (entry,) = summary(name.decode("utf-8", "surrogateescape"))
    assert entry["input"] == "bad\ufffd.png"
    assert json.loads((here / "whence-out" / "summary.json").read_text(encoding="utf-8"))


def test_places_that_may_not_be_looked_at(here, monkeypatch):
    ask = Path.stat

    def stat(self, **options):
        if "locked" in self.parts:
            raise PermissionError(13, "Permission denied")
        return ask(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    hidden, good = summary("locked/in.jpg", "one.png", code=1)
    assert "not there, or may not be read" in hidden["error"]
    assert good["error"] is None
    assert (
        "There is no folder" in whence("one.png", "--model", "./locked/m", "--force", code=2).stderr
    )


def test_a_long_output_name_is_told_in_a_sentence(here):
    assert "cannot be written to" in whence("one.png", "--out", "x" * 300, code=2).stderr


def test_control_characters_do_not_reach_the_terminal(here):
    photo().save("a\x1b[31mb.png")
    assert "\x1b[31m" not in whence("a\x1b[31mb.png").stdout


def test_words_are_shown_as_they_were_written(here):
    (entry,) = summary("A WONDERFUL film", "--out", "other")
    shown = {top["word"] for top in entry["classes"][0]["top"]}
    assert shown <= {"A", "WONDERFUL", "film"}
    assert "WONDERFUL" in shown


def test_a_model_without_its_tokenizer_is_refused(here, text_model):
    shutil.copytree(text_model, "bare")
    for file in (here / "bare").glob("*tok*"):
        file.unlink()
    result = whence("a film", "--model", "./bare", code=2)
    assert "tokenizer" in result.stderr


def test_one_logit_has_no_probability(here, tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = save_image_model(tmp_path_factory.mktemp("regression"))
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    model.classifier = torch.nn.Linear(model.classifier.in_features, 1)
    model.config.num_labels = 1
    model.float().save_pretrained(folder)
    (entry,) = summary("one.png", "--model", folder)
    assert entry["classes"][0]["probability"] is None
    assert "%" not in entry["sentence"]


def test_a_failed_input_leaves_no_earlier_result_of_its_name(here):
    whence("one.png")
    (here / "one.png").write_text("no photo")
    whence("one.png", "--force", code=1)
    assert written(here / "whence-out") == ["summary.json"]
