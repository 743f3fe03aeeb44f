"""`whence report` as people call it, rightly and wrongly."""

import subprocess
import sys

import pytest

from tests.html_pages import list_entries, parse_html
from tests.saved import make_photo
from whence import explain
from whence.inputs import expand
from whence.report import build


def read_settings(folder) -> str:
    return parse_html((folder / "report.html").read_text()).find_all("pre")[0].text


def test_it_says_what_it_did(here, report):
    result = report("photos", code=1)
    assert "3 of 4 inputs explained → report.html" in result.stdout
    assert "c.png: 'c.png' is" in result.stderr
    assert (here / "report.html").is_file()
    assert not list(here.glob(".*"))
    quiet = report("photos/a.png", "--quiet", "--force")
    assert quiet.output == ""


def test_photos_and_texts_together(here, report):
    (here / "photos" / "review.txt").write_text("a good film")
    report("photos", "--out", "deep/er/page.html", code=1)
    root = parse_html((here / "deep" / "er" / "page.html").read_text())
    assert len(list_entries(root)) == 5
    assert '"explains": "images"' in root.find_all("pre")[0].text
    assert '"explains": "texts"' in root.find_all("pre")[0].text


def test_nothing_is_written_over_without_force(here, report):
    (here / "report.html").write_text("mine")
    result = report("photos", code=2)
    assert "'report.html' exists already. Give --force" in result.stderr
    assert (here / "report.html").read_text() == "mine"
    report("photos", "--force", code=1)
    assert (here / "report.html").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none/"], "'none/' is not there, or may not be read"),
        (["phots"], "'phots' is no file or folder here. Did you mean 'photos'?"),
        (["photos/c.png"], "c.png: 'c.png' is"),
        (["photos", "--model", "TEXTS"], "explains texts, not images"),
        (["photos", "--out", "photos"], "'photos' is a folder; name the page's file"),
        (["photos", "--out", "page.pdf"], "'page.pdf' must end in .html"),
        (["photos", "--methods", "nonsense"], "nonsense"),
        (["photos", "--methods", "gae:nonsense=1"], "nonsense"),
        (["photos", "--target", "zebra"], "zebra"),
        (["photos", "--target", "cat", "--top", "2"], "either --target or --top"),
        (["photos", "--model", "nowhere/at/all"], "nowhere/at/all"),
        (["photos", "--rules", "nonsense"], "nonsense"),
        (["photos", "--precision", "fp8"], "'fp8' is not one of 'tf32'"),
        (["photos", "--out", "photos/a.png/page.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_met_writes_nothing(here, report, text_model, arguments, message):
    arguments = [text_model if one == "TEXTS" else one for one in arguments]
    before = sorted(here.rglob("*"))
    result = report(*arguments, code=2)
    assert message in result.stderr
    assert sorted(here.rglob("*")) == before


def test_an_interruption_leaves_nothing(here, report, monkeypatch):
    build_whole, calls = build.build_entry, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return build_whole(*arguments)

    monkeypatch.setattr(build, "build_entry", interrupted)
    report("photos", code=130)
    assert len(calls) >= 2  # another thread may have begun the next
    assert sorted(file.name for file in here.iterdir()) == ["photos"]


def test_fast_and_precision(here, report, programs):
    for number in range(4):
        make_photo(seed=number).save(here / "photos" / f"more{number}.png")
    # Two methods that take turns: each is compiled once.
    report("photos/more*.png", "--batch", 1, "--methods", "tiba,gae", "--compile")
    assert len(programs) == 2
    assert '"precision"' not in read_settings(here)
    report("photos/a.png", "--precision", "bfloat16", "--force")
    assert '"precision": "bfloat16"' in read_settings(here)


def test_the_method_that_is_not_named_is_that_of_explain(here, report):
    report("photos/a.png")
    by_default = (here / "report.html").read_text()
    method = explain("photos/a.png").method
    report("photos/a.png", "--methods", method, "--force")
    assert (here / "report.html").read_text() == by_default


def test_names_leave_out_the_folder_that_all_share(here, tmp_path):
    (tmp_path / "photos" / "more").mkdir()
    make_photo().save(tmp_path / "photos" / "more" / "d.png")
    sources = expand(["photos/a.png", str(tmp_path / "photos" / "more"), "some text"])
    assert build.shorten_names(sources) == ["a.png", "more/d.png", "some text"]
    assert build.shorten_names(sources[:1]) == ["a.png"]


def test_help_answers_without_torch():
    script = (
        "import sys\nfrom whence.cli.app import app\ntry:\n    app(['report', '--help'])\n"
        "finally:\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--no-faithfulness" in done.stdout
