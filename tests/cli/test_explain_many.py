"""`whence explain` to Parquet: what it prints, and what it refuses."""

import json

import pytest

from tests.cli.commands import run_explain
from tests.distributed.inputs import read_rows, write_photos
from whence.cli import explain_many
from whence.distributed.tables import FORMATS

pytest.importorskip("pyarrow")


@pytest.fixture
def photos(tmp_path, monkeypatch, embedded):
    write_photos(tmp_path / "photos", 5, broken=(3,))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


RUN = ("--format", "parquet", "--method", "rollout")


def test_a_run_tells_what_became_of_its_inputs(photos, tmp_path):
    first = run_explain("photos", *RUN, "--part-rows", 2, code=1)
    assert "4 of 5 inputs explained → whence-out (3 parts, " in first.stdout
    assert "  Classes: " in first.stdout
    assert "1 input failed: The photo is damaged" in first.stderr
    assert "(0003-palette.png)" in first.stderr
    again = run_explain("photos", *RUN, "--quiet", code=1)
    assert again.stdout == ""
    assert len(read_rows(tmp_path / "whence-out")) == 5
    told = run_explain("photos", *RUN, "--json", code=1)
    assert json.loads(told.stdout)["failed"] == 1
    (photos / "0000-jpeg.jpg").unlink()
    after = run_explain("photos", *RUN, code=1)
    assert "4 of 4 were done." in after.stderr
    assert "4 of 5 inputs explained" in after.stdout
    assert "Note: rows of inputs that are gone are kept: 1." in after.stdout


def test_tables_and_addresses_go_to_parquet_by_themselves(photos, tmp_path):
    rows = [{"id": n, "path": f"photos/{p.name}"} for n, p in enumerate(sorted(photos.iterdir()))]
    table = tmp_path / "inputs.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    run_explain("inputs.jsonl", "--method", "rollout", code=1)
    assert set(read_rows("whence-out")) == set("01234")
    uri = (photos / "0000-jpeg.jpg").as_uri()
    run_explain(uri, "--method", "rollout", "--out", "other", "--scores", "float16")
    assert set(read_rows("other")) == {"0000-jpeg.jpg"}
    known = {suffix for suffix, format in FORMATS.items() if format != "csv"}
    assert known == set(explain_many._TABLES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("photos", "--id", "key"), "--id is for rows of Parquet: give --format parquet too."),
        (("photos", "--part-rows", 3), "--part-rows is for rows of Parquet"),
        (("photos", *RUN, "--outlines"), "--outlines is for figures, and this run writes rows"),
        (("a.jsonl", "--format", "png"), "--format png is for figures"),
        (("good film", *RUN, "--text"), "--text is for texts on the command line"),
        (("good film", *RUN), "'good film' is not there, or may not be read."),
        (("photos", *RUN, "--target", "zebra"), "zebra"),
        (("a.parquet",), "'a.parquet' is not there"),
        (("photos", *RUN, "--out", "photos"), "holds files that are not of a run, such as '0000"),
    ],
)
def test_what_does_not_go_together_is_refused(photos, arguments, sentence):
    result = run_explain(*arguments, code=2)
    assert sentence in result.stderr
    assert result.stderr.startswith("Error: ")


def test_another_method_does_not_go_on(photos):
    run_explain("photos", *RUN, code=1)
    result = run_explain("photos", "--format", "parquet", "--method", "raw_attention", code=2)
    assert 'method was "rollout" and is "raw_attention" now' in result.stderr
    run_explain("photos", "--format", "parquet", "--method", "raw_attention", "--force", code=1)
    assert len(read_rows("whence-out")) == 5


def test_repaired_inputs_are_tried_again(photos, tmp_path):
    run_explain("photos", *RUN, code=1)
    write_photos(photos, 5)
    told = run_explain("photos", *RUN, "--retry")
    assert "1 input that failed is explained again." in told.stderr
    assert [row["error"] for row in read_rows(tmp_path / "whence-out").values()] == [""] * 5
    refused = run_explain("photos", *RUN, "--retry", "--force", code=2)
    assert "Give either --force, which starts anew, or --retry." in refused.stderr


def test_an_interrupted_run_says_how_to_go_on(photos, monkeypatch):
    from whence.distributed import run

    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "check_end", interrupt)
    result = run_explain("photos", *RUN, code=130)
    assert "Finished rows are kept in 'whence-out'; the same command goes on." in result.stderr
