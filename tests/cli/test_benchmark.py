"""`whence benchmark` on the command line."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from whence.cli.app import app


def whence(*arguments, code=0):
    result = CliRunner().invoke(app, ["benchmark", *map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def parquet():
    """What stores a run: skip where it is not installed."""
    pytest.importorskip("pyarrow", reason="whence[benchmark] is not installed")
    pytest.importorskip("matplotlib", reason="whence[benchmark] is not installed")


@pytest.mark.usefixtures("parquet")
def test_a_run(image_model, photos, tmp_path):
    asked = ("perturbation", "--model", image_model, "--data", photos, "--limit", 3, "--seed", 2)
    result = whence(*asked, "--methods", "tiba,random", "--out", tmp_path / "out", "--batch", 2)
    assert "positive, predicted ↓" in result.stdout
    assert "report.html" in result.stdout
    assert "Clean accuracy" in result.stdout
    quiet = whence(*asked, "--methods", "tiba", "--out", tmp_path / "out", "--quiet")
    assert quiet.stdout == ""
    other = whence(*asked, "--fill", "mean", "--out", tmp_path / "out", code=2)
    assert '\'fill\' was "zero" and is "mean" now' in other.stderr
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in whence(*asked, "--out", file, code=2).stderr


@pytest.mark.slow
@pytest.mark.usefixtures("parquet")
def test_precision_is_a_setting_and_fast_is_none(image_model, photos, tmp_path, programs):
    asked = ("perturbation", "--model", image_model, "--data", photos, "--methods", "gae")
    one = (*asked, "--batch", 1, "--quiet", "--out", tmp_path / "out")
    whence(*one)
    whence(*one, "--compile")  # all is there
    assert programs == []
    other = whence(*one, "--precision", "bfloat16", code=2)
    assert "'precision' was not set and is \"bfloat16\" now" in other.stderr
    coarse = (*one[:-1], tmp_path / "coarse", "--precision", "bfloat16")
    whence(*coarse, "--compile")
    assert programs
    whence(*coarse)
    told = json.loads((tmp_path / "coarse" / "run.json").read_text())
    assert told["settings"]["precision"] == "bfloat16"


@pytest.mark.usefixtures("parquet")
def test_embedded_model_and_default_folder(embedded, masked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whence("segmentation", "--data", masked, "--limit", 2, "--view", "whole")
    (folder,) = (tmp_path / "whence-benchmark").iterdir()
    assert folder.name.startswith("segmentation-masks")


@pytest.mark.usefixtures("parquet")
def test_a_folder_of_photos_without_labels(image_model, photos, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copy(min(photos.rglob("*.png")), flat / "a.png")
    for name in ("b", "c", "d"):
        (flat / f"{name}.png").write_text("no photo")
    asked = ("perturbation", "--model", image_model, "--data", flat, "--methods", "random")
    result = whence(*asked, "--out", tmp_path / "out")
    assert "has no labels: accuracy is against the class that the model" in result.stdout
    assert "positive, target" not in result.stdout
    assert "The dataset has no labels" in (tmp_path / "out" / "report.html").read_text()
    (skipped,) = result.stderr.splitlines()
    assert skipped.startswith("Skipped b.png: ")
    assert skipped.endswith("is not an image that Pillow knows. (3 samples)")
    other = whence("segmentation", *asked[1:], "--out", tmp_path / "other", code=2)
    assert "neither a mask nor boxes" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "'nowhere' is not there"),
        (["--methods", "tibba"], "Did you mean 'tiba'"),
        (["--unit", "patches"], "has no option 'unit'"),
        (["--precision", "tf32", "--device", "cpu"], "The precision tf32 needs a GPU"),
        (["--format", "jpeg"], "no format 'jpeg'"),
    ],
)
def test_sentences(masked, arguments, message, embedded):
    result = whence("segmentation", "--data", masked, *arguments, code=2)
    assert message in result.stderr


def test_protocols_say_what_they_need(photos, tmp_path):
    (tmp_path / "texts.csv").write_text("text\nA good film\n")
    table = tmp_path / "texts.csv"
    for protocol, data, message in (
        ("rationale", photos, "words that people marked in texts; for images there are"),
        ("segmentation", table, "masks or boxes in photos; for texts there is"),
        ("perturbation", table, "deleting words of a text is measured by `whence benchmark words`"),
    ):
        assert message in whence(protocol, "--data", data, code=2).stderr


@pytest.mark.usefixtures("parquet")
def test_several_protocols_and_an_overview(image_model, masked, tmp_path):
    asked = ("--model", image_model, "--data", masked, "--limit", 3, "--methods", "tiba,random")
    result = whence("saco:groups=3,segmentation", *asked, "--out", tmp_path / "out")
    name = f"masks-masked · {image_model.name}"
    assert result.stderr.splitlines() == [
        f"Run 1 of 2: saco:groups=3 · {name}",
        f"Run 2 of 2: segmentation · {name}",
    ]
    assert "2 methods in 3 criteria (1 model, 1 dataset, 2 protocols)." in result.stdout
    assert "overview.html" in result.stdout
    further = whence("localization", *asked, "--out", tmp_path / "out")
    assert "3 protocols" in further.stdout
    assert not (tmp_path / "out" / "run.json").exists()
    again = whence("overview", "--data", tmp_path / "out", "--ranking", "wilcoxon")
    assert "Wilcoxon's signed-rank test of the ranks" in again.stdout
    quiet = whence("overview", "--data", tmp_path / "out", "--out", tmp_path / "o", "--quiet")
    assert quiet.output == ""
    assert (tmp_path / "o" / "overview.csv").read_text().count("tiba") == 5
    asked = ("--data", tmp_path / "out")
    assert "takes no --limit" in whence("overview", *asked, "--limit", 3, code=2).stderr
    assert "stands alone" in whence("overview,srg", *asked, code=2).stderr


@pytest.mark.usefixtures("parquet")
def test_what_does_not_fit_is_said(image_model, masked, photos, tmp_path, monkeypatch):
    asked = ("saco:groups=3,segmentation", "--model", image_model, "--data", masked)
    asked += ("--limit", 2, "--methods", "random", "--out", tmp_path / "out")
    result = whence(*asked, "--data", photos, "--quiet")
    start = f"Left out: segmentation · imagenet · {image_model.name}: "
    assert start in result.stderr
    monkeypatch.setattr(
        "whence.benchmark.protocols.segmentation.SegmentationProtocol.compute_rows", None
    )
    failed = whence(*asked[:-1], tmp_path / "failed", code=2)
    assert "Failed: segmentation · masks-masked" in failed.stderr
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("1 of 2 runs failed. Finished samples are kept; the same command")
    nothing = whence("rationale,saco", *asked[1:-2], "--out", tmp_path / "no", code=2)
    assert "The rationale benchmark fits nothing here" in nothing.stderr


def test_help_lists_the_protocols_by_their_docstrings():
    from whence.benchmark import PROTOCOLS
    from whence.cli.protocol_list import format_protocols, list_protocols

    listed = list_protocols()
    assert listed.keys() == PROTOCOLS.keys()
    words = {"image": "photos", "text": "texts"}
    for name, kind in PROTOCOLS.items():
        assert listed[name].line == kind.__doc__.partition("\n")[0]
        assert listed[name].takes == " and ".join(words[one] for one in kind.kinds)
    shown = " ".join(whence("--help").output.split())
    assert all(" ".join(line.split())[:60] in shown for line in format_protocols().splitlines())
