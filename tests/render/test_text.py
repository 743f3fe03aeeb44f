"""Coloured words as a page and as a fragment."""

import re

import numpy as np
import pytest
import torch

from tests.html_pages import Element, parse_html
from tests.render.samples import explain_image, explain_text
from whence import Explanation, WhenceError
from whence.render import format_terminal_text, format_text_html, format_text_page
from whence.render.colors import THEMES
from whence.render.shades import LEVELS


def find_words(root: Element) -> list[Element]:
    return [span for span in root.find_all("span") if "title" in span.attributes]


def list_texts(root: Element, *tags: str) -> list[str]:
    return [one.text for tag in tags for one in root.find_all(tag)]


def test_fragment_has_words_with_their_score_on_hover():
    page = parse_html(format_text_html(explain_text(["good", "bad"], [2.0, -4.0])))
    words = [(w.text, w.attributes["class"], w.attributes["title"]) for w in find_words(page)]
    assert words == [
        ("good", f"wp{LEVELS // 2}", "+0.50 of the largest (score 2)"),
        ("bad", f"wn{LEVELS}", "-1.00 of the largest (score -4)"),
    ]
    (paragraph,) = page.find_all("p")
    assert paragraph.attributes == {"class": "words", "dir": "auto"}
    assert paragraph.text == "good bad"


def test_page_holds_all_samples_and_classes():
    one = explain_text(["good", "film"], [[1.0, 2], [-3, 0]], ["yes", "no"])
    two = Explanation(
        one.scores.repeat(3, 1, 1),
        one.target.repeat(3, 1),
        one.logits.repeat(3, 1),
        tokens=type(one.tokens)(one.tokens.strings * 3, one.tokens.words * 3),
        target_names=one.target_names * 3,
        method=one.method,
        settings=one.settings,
        version=one.version,
    )
    page = parse_html(format_text_page(two, title="Reviews"))
    assert list_texts(page, "title") == ["Reviews"]
    assert list_texts(page, "h2") == ["Text 1", "Text 2", "Text 3"]
    chances = torch.softmax(one.logits[0], 0)
    headings = [f"yes {100 * chances[0]:.1f}%", f"no {100 * chances[1]:.1f}%"]
    assert list_texts(page, "h3") == headings * 3
    assert [word.text for word in find_words(page)] == ["good", "film"] * 6
    assert list_texts(page, "dt", "dd") == [
        *("method", "rules", "start_layer", "whence"),
        *("tiba", "stable", "0", "1.2.3"),
    ]


def test_page_needs_nothing_outside():
    html = format_text_page(explain_text(["a"], [1.0]))
    assert not re.search(r"https?:|<script|<link|@import|url\(|\bsrc=", html)


def test_page_themes():
    explanation = explain_text(["a"], [1.0])
    assert "color-scheme: light dark" in format_text_page(explanation)
    dark = format_text_page(explanation, theme="dark")
    assert "color-scheme: dark" in dark
    assert THEMES["light"].background not in dark
    with pytest.raises(WhenceError, match="no theme 'pink'"):
        format_text_page(explanation, theme="pink")


def test_everything_is_escaped():
    evil = '<script>alert("1")</script>&amp;'
    explanation = explain_text([evil], [1.0], evil)
    explanation.settings = {evil: evil}
    page = parse_html(format_text_page(explanation, title=evil))
    assert not page.find_all("script")
    assert find_words(page)[0].text == evil
    assert list_texts(page, "title", "h1", "bdi") == [evil] * 3
    assert evil in list_texts(page, "dt")


def test_every_script_survives():
    words = ["שלום", "فيلم", "👩‍👩‍👧", "🎬", "好", "e\u0301"]
    page = parse_html(format_text_page(explain_text(words, range(6))))
    assert [word.text for word in find_words(page)] == words
    assert page.find_all("p")[1].attributes["dir"] == "auto"


def test_control_characters_are_shown_not_obeyed():
    explanation = explain_text(["\x1b[2J", "a\nb"], [1.0, 0.5], "\x07bell")
    assert format_terminal_text(explanation).plain == "\ufffd[2J a b"
    assert "\x1b" not in format_text_page(explanation)
    assert "\x07" not in format_text_page(explanation)


def test_positions_where_tokens_are_unknown():
    explanation = explain_text(["a", "b"], [1.0, 2.0])
    explanation.tokens = None
    positions = ["#0", "#1", "#2", "#3"]
    page = parse_html(format_text_html(explanation))
    assert [word.text for word in find_words(page)] == positions
    assert format_terminal_text(explanation).plain.split() == positions


def test_legend_tells_the_sign():
    assert "against" in format_text_page(explain_text(["a", "b"], [1.0, -1.0]))
    positive = format_text_page(explain_text(["a", "b"], [1.0, 0.0]))
    assert "against" not in positive
    assert "low" in positive


def test_no_words_and_no_scores():
    assert "no words" in format_text_html(explain_text([], []))
    assert format_terminal_text(explain_text([], [])).plain == ""
    page = parse_html(format_text_html(explain_text(["a", "b"], [0.0, 0.0])))
    assert {word.attributes["class"] for word in find_words(page)} == {"wp0"}


def test_what_cannot_be_shown_says_so():
    for function in (format_text_page, format_text_html, format_terminal_text):
        with pytest.raises(WhenceError, match="of images, which have no words"):
            function(explain_image(np.eye(2)))
        with pytest.raises(WhenceError, match="NaN or infinite"):
            function(explain_text(["a"], [float("nan")]))
    for function in (format_text_html, format_terminal_text):
        with pytest.raises(WhenceError, match="no sample 3; the samples are 0 to 0"):
            function(explain_text(["a"], [1.0]), 3)
        with pytest.raises(WhenceError, match="no explained class 1"):
            function(explain_text(["a"], [1.0]), 0, 1)
