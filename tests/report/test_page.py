"""What the page holds, and that nothing in it can reach out or break out."""

import base64
import hashlib
import io
import pickle
import re

import numpy as np
import pytest
from PIL import Image

from tests.fixtures import HOSTILE
from tests.report.reading import items, read
from tests.saved import photo, save_image_model
from whence import explain, faithfulness, render
from whence.inputs import expand
from whence.methods.specification import choose
from whence.models import load
from whence.pipeline import How
from whence.report.build import ReportRequest, build_report
from whence.report.images import bound_aspect_ratio, encode_map, encode_photo

ALLOWED = {
    *"html head meta link title style body main h1 h2 h3 p section form label input select".split(),
    *"option div span output button ul li bdi figure figcaption b small img svg polyline".split(),
    *"table caption thead tbody tr th td pre script i".split(),
}


def made(report, *arguments, code=0):
    report(*arguments, "--force", code=code)
    with open("report.html", encoding="utf-8") as file:
        return file.read()


def decoded(address: str) -> Image.Image:
    kind, _, content = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_every_input_has_its_place_in_order(here, report):
    root = read(made(report, "photos", "--top", "2", code=1))
    found = items(root)
    names = [one.all("bdi", class_="name")[0].text for one in found]
    assert names == sorted([HOSTILE, "a.png", "b.jpg", "c.png"])
    assert [one.attributes.get("data-failed") for one in found] == [None, None, None, "1"]
    (error,) = found[-1].all("p", class_="error")
    assert error.text.startswith("'c.png' is")
    assert root.all("title")[0].text == root.all("h1")[0].text == "photos"
    assert root.all("p", class_="lead")[0].text.startswith("4 inputs, explained by ")
    assert "1 could not be explained" in root.all("p", class_="lead")[0].text


def test_the_numbers_are_those_of_the_library(here, report):
    loaded = load(None, "image")
    methods = "gae,raw_attention"
    found = items(read(made(report, "photos/a.png", "--methods", methods, "--top", "2")))
    measured = faithfulness.compare("photos/a.png", methods.split(","), loaded, classes=2, draws=0)
    chances = explain("photos/a.png", loaded, classes=2).logits[0].double().softmax(0)
    (one,) = found
    first = measured.targets[0]
    data = one.attributes
    assert float(data["data-probability"]) == pytest.approx(float(chances[first]), abs=1e-6)
    assert data["data-class"] == loaded.class_names[first]
    scores = [float(score) for score in data["data-faithfulness"].split()]
    wanted = [measured.get(method).score for method in methods.split(",")]
    assert scores == pytest.approx(wanted, abs=2e-3)
    maps = one.all("figure")[1:]
    order = [(target, method) for target in measured.targets for method in methods.split(",")]
    for figure, (target, method) in zip(maps, order, strict=True):
        curves = measured.get(method, target)
        text = figure.all("figcaption")[0].text
        assert text.startswith(loaded.class_names[target])
        assert f"by {method}" in text
        assert text.endswith(f"faithfulness {curves.score:.1f}")
        most, least = figure.all("polyline")
        for line, curve in ((most, curves.most), (least, curves.least)):
            heights = [int(p.split(",")[1]) for p in line.attributes["points"].split()]
            assert heights == pytest.approx([100 - 100 * chance for chance in curve], abs=0.51)
    assert [notes.text for notes in one.all("ul", class_="notes")] == [
        "raw_attention is the same for every class"
    ]


def test_without_faithfulness(here, report):
    page = made(report, "photos/a.png", "--no-faithfulness")
    (one,) = items(read(page))
    assert one.attributes["data-faithfulness"] == ""
    assert not one.all("svg")
    assert "tokenised again" not in page


def test_nothing_is_asked_for_from_outside(here, report):
    (here / "photos" / "review.txt").write_text("see https://example.org/x.png and //example.org")
    page = made(report, "photos", code=1)
    root = read(page)
    for one in root.all("*"):
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            assert one.attributes.get(name, "data:").startswith("data:"), one
        for address in re.findall(r"url\((.*?)\)", one.attributes.get("style", "")):
            assert address.startswith("data:image/jpeg;base64,")
    (style,) = root.all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    (script,) = root.all("script")
    assert not re.search(r"fetch|XMLHttp|import|WebSocket|http|innerHTML", script.text)


def test_only_our_script_may_run(here, report):
    root = read(made(report, "photos", code=1))
    (script,) = root.all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    policy = root.all("meta")[1].attributes["content"]
    assert policy.startswith("default-src 'none'; img-src data:")
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_classes_and_texts_stay_text(here, report, tmp_path):
    evil = "</script><script>alert(1)</script>"
    folder = save_image_model(tmp_path / "evil")
    config = (folder / "config.json").read_text().replace("crane", evil).replace("cat", evil + "2")
    (folder / "config.json").write_text(config)
    title = f"{evil}\x1b[31m"
    arguments = ("photos", "--model", folder, "--top", "3", "--title", title)
    root = read(made(report, *arguments, code=1))
    assert {one.tag for one in root.all("*")} <= ALLOWED
    assert len(root.all("script")) == 1
    for one in root.all("*"):
        assert not [name for name in one.attributes if name.startswith("on")]
    assert root.all("h1")[0].text == f"{evil}\N{REPLACEMENT CHARACTER}[31m"
    names = {one.text for one in root.all("bdi", class_="class")}
    assert names >= {evil, evil + "2", "dog"}
    (here / "evil.csv").write_text(f'text\n"good {evil} film"\n')
    root = read(made(report, "evil.csv"))
    assert {one.tag for one in root.all("*")} <= ALLOWED
    assert len(root.all("script")) == 1
    assert "script" in items(root)[0].all("p", class_="words")[0].text


def test_texts_are_coloured_by_their_scores(here, report):
    (here / "reviews.csv").write_text("text\na wonderful film\ngood\nnot bad ! it was very good\n")
    root = read(made(report, "reviews.csv", "--methods", "gae"))
    found = items(root)
    assert [one.all("bdi", class_="name")[0].text for one in found] == [
        f"reviews.csv, row {number}" for number in (1, 2, 3)
    ]
    first = found[0].all("p", class_="words")[0]
    assert first.text.split() == ["a", "wonderful", "film"]
    shares = {
        w.text: w.level
        for w in render.words.list_words(explain("a wonderful film", None, method="gae"))
    }
    strongest = [word for word, level in shares.items() if level == 20]
    assert [s.text for s in first.all("span", class_="wp20")] == strongest
    # A single word leaves nothing to remove, which is no reason not to show it.
    assert found[1].attributes["data-faithfulness"] == ""
    assert "faithfulness was not measured: A text of a single word" in found[1].text
    (table,) = root.all("table")
    assert "The class shown first, 2 texts." in table.text


def test_the_table_of_methods(here, report):
    root = read(made(report, "photos", "--methods", "gae,random", code=1))
    scores = np.array(
        [
            [float(score) for score in one.attributes["data-faithfulness"].split()]
            for one in items(root)[:3]
        ]
    )
    (table,) = root.all("table")
    for at, row in enumerate(table.all("tbody")[0].all("tr")):
        mean, _, median, wins = [cell.text for cell in row.all("td")]
        assert float(mean) == pytest.approx(scores[:, at].mean(), abs=0.06)
        assert float(median) == pytest.approx(np.median(scores[:, at]), abs=0.06)
        assert int(wins) == int((scores[:, at] == scores.max(1)).sum())


def test_settings_can_be_read_and_name_no_folders(here, report, image_model):
    page = made(report, "photos", "--model", image_model, "--methods", "rollout", code=1)
    assert str(here) not in page
    assert str(image_model.parent) not in page
    told = read(page).all("pre")[0].text
    for fact in ('"label": "rollout"', '"start_layer": 0', '"whence":', '"torch":', "SHA-256"):
        assert fact in told
    assert re.search(r'"weights, SHA-256": "[0-9a-f]{64}"', told)


def test_a_page_made_again_is_the_same(here, report):
    assert made(report, "photos", code=1) == made(report, "photos", code=1)


def test_an_entry_holds_no_more_than_it_shows(here):
    """A thousand are in memory together, so that none may keep pixels, ranks or evidence."""
    how = How(methods=tuple(choose("gae")))
    (entry,) = build_report(ReportRequest(how, here / "page.html"), expand(["photos/a.png"]))
    shown = len(entry.photo) + sum(len(result.shown) for result in entry.results)
    assert len(pickle.dumps(entry)) < shown + 2000


def test_maps_lie_over_photos_as_the_library_draws_them():
    """The small map, enlarged and blended as the page does it, is the library's own overlay."""
    scores = np.random.default_rng(0).random((7, 7))
    image = photo(224, 224)
    small = decoded(encode_map(scores)).convert("RGBA").resize((224, 224), Image.Resampling.BICUBIC)
    small.putalpha(small.getchannel("A").point([round(0.6 * a) for a in range(256)]))
    muted = Image.blend(image, image.convert("L").convert("RGB"), 0.6).convert("RGBA")
    shown = np.asarray(Image.alpha_composite(muted, small).convert("RGB"), dtype=float)
    wanted = np.asarray(render.overlay(image, scores), dtype=float)
    assert np.abs(shown - wanted).mean() < 2


def test_pictures_are_small():
    large = photo(3000, 2000)
    address = encode_photo(large)
    assert decoded(address).size == (288, 192)
    assert large.size == (3000, 2000)
    assert len(encode_map(np.eye(14))) < 6000
    assert decoded(encode_map(np.random.default_rng(0).normal(size=(14, 28)))).size == (56, 28)
    assert bound_aspect_ratio(photo(600, 2)) == 3
    assert bound_aspect_ratio(photo(60, 40)) == 1.5
