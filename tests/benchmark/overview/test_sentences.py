"""What an overview says."""

import csv
import io
import re

import pytest

from tests.benchmark.overview.finished import make_run
from whence.benchmark.overview import formats, summarize_runs
from whence.benchmark.overview.pictures import draw_agreement, draw_ranks
from whence.benchmark.overview.sentences import write_notes, write_sentences


@pytest.fixture(scope="module")
def overview():
    runs = [
        make_run({"whence": 0.6, "top": 0.9, "low": 0.2}),
        make_run({"whence": 0.6, "top": 0.9, "low": 0.2}, "dino", seed=1),
        make_run({"whence": 0.6, "top": 0.3, "low": 0.2}, "clip", seed=2),
    ]
    return summarize_runs(runs)


def test_where_the_best_is_beaten(overview):
    text = "\n".join(write_sentences(overview))
    assert "3 methods in 9 criteria (3 models, 1 dataset, 1 protocol)." in text
    assert "Best on average is top: mean rank 1.33 of 3." in text
    assert (
        "top (the best on average) leads in 6, ties in 0 and is significantly beaten in 3 of 9 "
        "criteria (33 %)." in text
    )
    value = {name: cell.value for name, cell in overview.criteria[6].cells.items()}
    p = overview.standings["top"][6].better[0].p_value
    assert (
        f"top is beaten in rationale: token-F1 · clip by whence ({value['whence']:.2f} against "
        f"{value['top']:.2f}, p = {p:.2g})." in text
    )
    assert "whence (the default, place 2) leads in 3" in text
    assert "(67 %)" in text
    assert re.search(r"Kendall's τ = -?\d\.\d\d \[-?\d\.\d\d, -?\d\.\d\d\] on average", text)


def test_notes_say_what_the_ranks_are_over(overview):
    notes = " ".join(write_notes(overview))
    assert "over 3 runs (model, dataset and protocol), on each the mean" in notes
    assert "not independent" in notes
    single = summarize_runs([make_run({"a": 0.6, "b": 0.5})], "wilcoxon")
    notes = " ".join(write_notes(single))
    assert "over 30 samples, on each the mean over the figures" in notes
    assert "Wilcoxon's" in notes
    assert "not independent" not in notes


def test_all_figures_as_csv(overview):
    rows = list(csv.DictReader(io.StringIO(formats.to_csv(overview))))
    assert len(rows) == 9 * 3
    assert [row["p against best on average"] for row in rows if row["method"] == "top"] == [""] * 9
    first = rows[0]
    cell = overview.criteria[0].cells["whence"]
    assert float(first["value"]) == cell.value
    assert float(first["p against best"]) == cell.p
    assert (first["model"], first["metric"], first["rank"]) == ("vit", "token-F1", "2")
    verdicts = [row["verdict"] for row in rows if row["method"] == "top"]
    assert verdicts == ["leads"] * 6 + ["beaten"] * 3
    ranks = list(csv.DictReader(io.StringIO(formats.ranks_to_csv(overview))))
    assert [row["method"] for row in ranks] == list(overview.comparison.mean_ranks)
    assert float(ranks[0]["share beaten"]) == pytest.approx(3 / 9)
    pairs = list(csv.DictReader(io.StringIO(formats.agreement_to_csv(overview))))
    assert len(pairs) == 36


def test_markdown_and_terminal(overview):
    text = formats.to_markdown(overview)
    assert "| top | 1.33 | 6 | 0 | 3 | 33 % |" in text
    assert "![Mean ranks](ranks.png)" in text
    table = formats.to_terminal(overview)
    assert table.row_count == 3


def test_pictures_of_thirty_methods_are_tall(overview):
    png = b"\x89PNG"
    small = draw_ranks(overview.comparison)
    many = {f"method_{at}:rules=reference": 0.9 - at / 40 for at in range(30)}
    large = draw_ranks(summarize_runs([make_run(many, samples=10)]).comparison)
    assert small[:4] == large[:4] == png
    heights = [int.from_bytes(one[20:24], "big") for one in (small, large)]
    assert heights[1] - heights[0] >= 27 * 30  # pixels for each further method
    assert draw_agreement(overview.agreement, overview.names)[:4] == png


def test_a_run_without_figures_is_named():
    full = make_run({"whence": 0.6, "low": 0.2}, samples=1)
    empty = make_run({"whence": float("nan"), "low": float("nan")}, "dino")
    assert empty.table.metrics == []
    assert empty.table.notes[-1] == "No sample has a figure, so the table is empty."
    overview = summarize_runs([full, empty])
    last = write_sentences(overview)[-1]
    assert last == "No criteria, since no sample has a figure: rationale · pets · dino."
    assert "Ranks are over 1 sample," in write_notes(overview)[0]
