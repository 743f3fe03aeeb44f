"""From inputs to the page: settings, names without folders, the same page again."""

import pickle
import re

from tests.html_pages import parse_html
from whence.inputs import expand
from whence.methods import parse_methods
from whence.pipeline import ExplainSettings
from whence.report.build import ReportRequest, build_report


def test_settings_can_be_read_and_name_no_folders(here, make_page, image_model):
    page = make_page("photos", "--model", image_model, "--methods", "rollout", code=1)
    assert str(here) not in page
    assert str(image_model.parent) not in page
    settings = parse_html(page).find_all("pre")[0].text
    for fact in ('"label": "rollout"', '"start_layer": 0', '"whence":', '"torch":', "SHA-256"):
        assert fact in settings
    assert re.search(r'"weights, SHA-256": "[0-9a-f]{64}"', settings)


def test_a_page_made_again_is_the_same(here, make_page):
    assert make_page("photos", code=1) == make_page("photos", code=1)


def test_an_entry_holds_no_more_than_it_shows(here):
    """A thousand are in memory together, so that none may keep pixels, ranks or evidence."""
    how = ExplainSettings(methods=tuple(parse_methods("gae")))
    (entry,) = build_report(ReportRequest(how, here / "page.html"), expand(["photos/a.png"]))
    shown = len(entry.photo) + sum(len(result.shown) for result in entry.results)
    assert len(pickle.dumps(entry)) < shown + 2000
