"""The files that a run writes."""

import json
import re

import pyarrow.parquet as parquet
import pytest

from tests.benchmark.runs import METHODS, list_files, run_again
from whence import benchmark


def test_what_a_run_writes(whole):
    names = {file.name for file in whole.folder.iterdir()}
    assert names == {
        *("run.json", "parts", "table.md", "table.csv", "table.tex", "curves.png", "report.html"),
        *("overview.md", "overview.csv", "ranks.csv", "agreement.csv"),
        *("ranks.png", "agreement.png"),
    }
    facts = json.loads((whole.folder / "run.json").read_text())
    assert facts["state"] == "finished"
    assert facts["settings"]["seed"] == 0
    assert len(facts["settings"]["model weights"]) == 64
    assert set(facts["versions"]) == {"whence", "torch", "transformers", "python"}
    assert facts["summary"]["used"] == 9
    assert facts["summary"]["skipped"] == []
    assert facts["results"] == whole.table.to_dict()
    assert len(list_files(whole.folder)) == 2 * 5


def test_the_table_is_that_of_the_rows(whole):
    for method in ("tiba", "random"):
        rows = [
            row
            for file in list_files(whole.folder)
            if parquet.read_schema(file).metadata[b"method"] == method.encode()
            for row in parquet.read_table(file).to_pylist()
        ]
        assert len(rows) == 9
        for order in ("positive", "negative"):
            for which in ("predicted", "target"):
                curves = [row[f"{order}_{which}_accuracy"] for row in rows]
                mean = [sum(values) / 9 for values in zip(*curves, strict=True)]
                auc = 100 * sum((mean[i] + mean[i + 1]) / 2 * 0.1 for i in range(9))
                cell = whole.table.to_dict()[method][f"{order}, {which}"]
                assert cell["value"] == pytest.approx(auc)


def test_the_page_needs_nothing_outside(whole):
    page = (whole.folder / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert not re.search(r"https?://", page)
    assert page.count("<figure>") == 6 * 3
    assert "Settings and versions" in page
    assert "transformers" in page


def test_segmentation_and_rationale(vit, bert, masked, reviews, tmp_path):
    outcome = benchmark.run("segmentation", vit, masked, METHODS, batch=3, out=tmp_path / "s")
    names = [metric.name for metric in outcome.table.metrics]
    assert names == ["pixel accuracy", "mIoU", "mAP", "F1", "pointing game", "energy inside"]
    assert (tmp_path / "s" / "report.html").read_text().count("<figure>") == 4 * 3
    outcome = benchmark.run("rationale", bert, reviews, METHODS, out=tmp_path / "r")
    assert {"token-F1", "AUPRC", "sufficiency", "token-F1, k=80"} <= set(
        outcome.table.to_dict()["tiba"]
    )
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count("Marked as the reason: very") == 4
    assert any("longer than the model reads" in note for note in outcome.table.notes)


@pytest.mark.usefixtures("quick")
def test_other_versions_are_told(copied, vit, photos):
    facts = json.loads((copied / "run.json").read_text())
    facts["versions"]["torch"] = "1.0"
    (copied / "run.json").write_text(json.dumps(facts))
    notes = run_again(vit, photos, copied).table.notes
    assert any("torch 1.0" in note for note in notes)
    assert any("torch 1.0" in note for note in run_again(vit, photos, copied).table.notes)


@pytest.mark.usefixtures("quick")
def test_trust_says_how_many_samples_saw_random_layers(vit, photos, tmp_path):
    outcome = benchmark.run("trust", vit, photos, "random", limit=2, draws=1, out=tmp_path / "t")
    assert any("on 2 sample(s)" in note for note in outcome.table.notes)
