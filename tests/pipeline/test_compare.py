"""Several methods on one input, side by side."""

import os

import pytest
import torch

from tests.html_pages import parse_html
from tests.saved import make_photo
from whence import WhenceError, compare, explain
from whence.faithfulness import measure

TEXT = "the film is wonderful , and not bad ."


@pytest.fixture
def of_photo(vit):
    return compare(make_photo(), ["whence", "gae"], vit, classes=2, faithfulness=True)


def test_each_method_explains_as_alone(of_photo, vit):
    assert list(of_photo) == ["whence", "gae"]
    for name, explanation in of_photo.items():
        alone = explain(make_photo(), vit, classes=2, method=name)
        assert torch.equal(explanation.scores, alone.scores)
    assert repr(of_photo) == "Comparison(whence, gae)"
    with pytest.raises(KeyError, match="'rise' was not compared; there are whence, gae"):
        of_photo["rise"]


def test_faithfulness_is_that_of_measure(of_photo, vit):
    measured = measure(vit, vit.prepare([make_photo()]), dict(of_photo), draws=0)
    for name in of_photo:
        score = measured.get(name).score
        assert of_photo.faithfulness.get(name).score == score
        assert f"faithfulness {score:.1f}" in of_photo.plot().to_svg()


def test_it_writes_itself(of_photo, tmp_path):
    for ending in ("png", "jpg", "svg", "html"):
        of_photo.save(tmp_path / f"a.{ending}")
        assert (tmp_path / f"a.{ending}").stat().st_size > 5000
    page = parse_html((tmp_path / "a.html").read_text(encoding="utf-8"))
    written = [one.text for one in page.find_all("text")]
    names = [one.name for one in of_photo["gae"].classes()]
    assert {*names, "whence", "gae"} < set(written)
    with pytest.raises(WhenceError, match=r"must end in \.png, \.jpg, \.jpeg, \.svg or \.html"):
        of_photo.save(tmp_path / "a.json")
    assert len(os.listdir(tmp_path)) == 4


def test_it_shows_itself_in_a_terminal(embedded, capsys, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    compare(TEXT, "gae,rollout:start_layer=1").show()
    lines = capsys.readouterr().out.splitlines()
    assert {"gae", "rollout:start_layer=1"} < set(lines)
    assert sum("wonderful" in line for line in lines) == 2


def test_explanations_that_are_there_already(of_photo, tmp_path):
    named = compare({"one": of_photo["whence"], "two": of_photo["gae"]})
    assert list(named) == ["one", "two"]
    listed = compare([of_photo["gae"], of_photo["gae"]])
    assert list(listed) == ["gae", "gae 2"]
    listed.show(path=tmp_path / "a.svg")
    assert "gae 2" in (tmp_path / "a.svg").read_text()


def test_what_cannot_be_compared_says_so(embedded, of_photo):
    for what, message in (
        ([of_photo["gae"], "cat.jpg"], "explanations only"),
        ({"a": of_photo["gae"], "b": explain(TEXT)}, "same input and classes"),
        ({}, "nothing to compare"),
    ):
        with pytest.raises(WhenceError, match=message):
            compare(what)
    with pytest.raises(WhenceError, match="compared as they are"):
        compare([of_photo["gae"]], faithfulness=True)
    with pytest.raises(WhenceError, match="no method 'gea'"):
        compare(TEXT, ["gea"])
