"""What the page shows of each input."""

import numpy as np
import pytest

from tests.fixtures import HOSTILE
from tests.html_pages import list_entries, parse_html
from whence import compare, explain, render
from whence.models import load


def test_every_input_has_its_place_in_order(here, make_page):
    root = parse_html(make_page("photos", "--top", "2", code=1))
    entries = list_entries(root)
    names = [one.find_all("bdi", class_="name")[0].text for one in entries]
    assert names == sorted([HOSTILE, "a.png", "b.jpg", "c.png"])
    assert [one.attributes.get("data-failed") for one in entries] == [None, None, None, "1"]
    (error,) = entries[-1].find_all("p", class_="error")
    assert error.text.startswith("'c.png' is")
    assert root.find_all("title")[0].text == root.find_all("h1")[0].text == "photos"
    assert root.find_all("p", class_="lead")[0].text.startswith("4 inputs, explained by ")
    assert "1 could not be explained" in root.find_all("p", class_="lead")[0].text


def test_the_numbers_are_those_of_the_library(here, make_page, full_precision):
    loaded = load(None, "image")
    methods = "gae,raw_attention"
    page = make_page("photos/a.png", "--methods", methods, "--top", "2")
    (one,) = list_entries(parse_html(page))
    compared = compare("photos/a.png", methods, loaded, classes=2, faithfulness=True)
    measured = compared.faithfulness
    chances = explain("photos/a.png", loaded, classes=2).logits[0].double().softmax(0)
    first = measured.targets[0]
    data = one.attributes
    assert float(data["data-probability"]) == pytest.approx(float(chances[first]), abs=1e-6)
    assert data["data-class"] == loaded.class_names[first]
    scores = [float(score) for score in data["data-faithfulness"].split()]
    wanted = [measured.get(method).score for method in methods.split(",")]
    assert scores == pytest.approx(wanted, abs=2e-3)
    maps = one.find_all("figure")[1:]
    order = [(target, method) for target in measured.targets for method in methods.split(",")]
    for figure, (target, method) in zip(maps, order, strict=True):
        curves = measured.get(method, target)
        text = figure.find_all("figcaption")[0].text
        assert text.startswith(loaded.class_names[target])
        assert f"by {method}" in text
        assert text.endswith(f"faithfulness {curves.score:.1f}")
        most, least = figure.find_all("polyline")
        for line, curve in ((most, curves.most), (least, curves.least)):
            heights = [int(p.split(",")[1]) for p in line.attributes["points"].split()]
            assert heights == pytest.approx([100 - 100 * chance for chance in curve], abs=0.51)
    assert [notes.text for notes in one.find_all("ul", class_="notes")] == [
        "raw_attention is the same for every class"
    ]


def test_without_faithfulness(here, make_page):
    page = make_page("photos/a.png", "--no-faithfulness")
    (one,) = list_entries(parse_html(page))
    assert one.attributes["data-faithfulness"] == ""
    assert not one.find_all("svg")
    assert "tokenised again" not in page


def test_texts_are_coloured_by_their_scores(here, make_page):
    (here / "reviews.csv").write_text("text\na wonderful film\ngood\nnot bad ! it was very good\n")
    root = parse_html(make_page("reviews.csv", "--methods", "gae"))
    entries = list_entries(root)
    assert [one.find_all("bdi", class_="name")[0].text for one in entries] == [
        f"reviews.csv, row {number}" for number in (1, 2, 3)
    ]
    first = entries[0].find_all("p", class_="words")[0]
    assert first.text.split() == ["a", "wonderful", "film"]
    shares = {
        w.text: w.level
        for w in render.words.list_words(explain("a wonderful film", None, method="gae"))
    }
    strongest = [word for word, level in shares.items() if level == 20]
    assert [s.text for s in first.find_all("span", class_="wp20")] == strongest
    # A single word leaves nothing to remove, which is no reason not to show it.
    assert entries[1].attributes["data-faithfulness"] == ""
    assert "faithfulness was not measured: A text of a single word" in entries[1].text
    (table,) = root.find_all("table")
    assert "The class shown first, 2 texts." in table.text


def test_the_table_of_methods(here, make_page):
    root = parse_html(make_page("photos", "--methods", "gae,random", code=1))
    scores = np.array(
        [
            [float(score) for score in one.attributes["data-faithfulness"].split()]
            for one in list_entries(root)[:3]
        ]
    )
    (table,) = root.find_all("table")
    for at, row in enumerate(table.find_all("tbody")[0].find_all("tr")):
        mean, _, median, wins = [cell.text for cell in row.find_all("td")]
        assert float(mean) == pytest.approx(scores[:, at].mean(), abs=0.06)
        assert float(median) == pytest.approx(np.median(scores[:, at]), abs=0.06)
        assert int(wins) == int((scores[:, at] == scores.max(1)).sum())
