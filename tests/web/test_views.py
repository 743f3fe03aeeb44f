"""HTML of the page: everything that a visitor or a model names is escaped."""

import dataclasses

import pytest

from tests.web.client import make_png
from whence.web import views
from whence.web.service import Choice, ClassProbability, MethodResult
from whence.web.validation import check_text, decode_photo

EVIL = "<script>alert(1)</script> & \"quoted\" 'text'"


@pytest.fixture(params=["photos", "texts"])
def prediction(request, service):
    is_photo = request.param == "photos"
    page_input = decode_photo(make_png()) if is_photo else check_text("the film is not bad")
    return service.predict(request.param, page_input)


def test_probabilities(prediction):
    classes = [ClassProbability(0, EVIL, 0.99999), ClassProbability(1, "b", None)]
    evil = dataclasses.replace(prediction, classes=classes)
    evil.prepared.notes[0].append(EVIL)
    html = views.render_probabilities(evil)
    evil.prepared.notes[0].remove(EVIL)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 2
    assert '<span class="percent">&gt;99.9%</span>' in html
    assert '<span class="percent"></span>' in html


def test_results(service, prediction):
    (result,) = service.explain(prediction, Choice((0,)), ["gae"])
    evil = dataclasses.replace(result.explanation, target_names=[[EVIL]], method=EVIL)
    results = [MethodResult("gae", evil), MethodResult(EVIL, error=EVIL)]
    html = views.render_results(results, prediction.photo)
    assert "<script" not in html
    assert 'role="alert">&lt;script&gt;' in html
    assert '"quoted"' not in html


def test_notes():
    assert (
        views.render_fragment("note", "a\x1b[31m <b>")
        == '<p class="whence note">a\ufffd[31m &lt;b&gt;</p>'
    )
