import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.render.samples import of_image, of_text
from whence import Explanation, WhenceError
from whence.render import format_terminal_text, format_text_html, format_text_page
from whence.render.colors import THEMES, measure_contrast
from whence.render.shades import LEVELS, TERMINAL_INK, shade_terminal_word, shade_word
from whence.render.styles import words_style
from whence.render.words import find_spaces, list_words

VOID = {"meta"}


class Page(HTMLParser):
    """Elements as (tag, attributes, text inside), and a check that tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.elements = [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def all(self, tag):
        return [(attrs, text) for name, attrs, text in self.elements if name == tag]

    def words(self):
        return [(attrs, text) for attrs, text in self.all("span") if "title" in attrs]


def rgb(color: str):
    return np.frombuffer(bytes.fromhex(color.removeprefix("#")), np.uint8)


@pytest.mark.parametrize("theme", THEMES)
def test_words_are_readable_at_every_score(theme):
    ink = rgb(THEMES[theme].ink)
    for share in np.linspace(-1, 1, 401):
        assert measure_contrast(shade_word(share, theme), ink) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_text_beside_the_words_is_readable(theme):
    for color in (THEMES[theme].ink, THEMES[theme].muted):
        assert measure_contrast(rgb(color), rgb(THEMES[theme].background)) >= 4.5


def test_terminal_words_are_readable_at_every_score():
    for share in np.linspace(-1, 1, 401):
        assert measure_contrast(shade_terminal_word(share), TERMINAL_INK) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_stronger_words_stand_out_more(theme):
    for sign in (1, -1):
        ground = rgb(THEMES[theme].background)
        found = [
            measure_contrast(shade_word(sign * s, theme), ground) for s in np.linspace(0, 1, 11)
        ]
        assert found[0] == 1
        assert (np.diff(found) > 0).all()


def test_the_style_holds_the_tested_colors():
    style = words_style("auto")
    for theme in THEMES:
        for level in range(-LEVELS, LEVELS + 1):
            name = f"w{'n' if level < 0 else 'p'}{abs(level)}"
            red, green, blue = shade_word(level / LEVELS, theme)
            assert f"--whence-{name}: #{red:02x}{green:02x}{blue:02x};" in style
            assert f".whence .{name} {{ background: var(--whence-{name}); }}" in style
    assert "@media (prefers-color-scheme: dark)" in style
    assert "@media" not in words_style("dark")


def test_scores_are_relative_to_the_largest_word():
    words = list_words(of_text(["good", "bad", "film"], [2.0, -4.0, 0.0]))
    assert [word.share for word in words] == [0.5, -1, 0]
    assert [word.level for word in words] == [LEVELS // 2, -LEVELS, 0]
    assert [word.score for word in words] == [2, -4, 0]


def test_fragment_has_words_with_their_score_on_hover():
    page = Page(format_text_html(of_text(["good", "bad"], [2.0, -4.0])))
    assert [(text, attrs["class"], attrs["title"]) for attrs, text in page.words()] == [
        ("good", f"wp{LEVELS // 2}", "+0.50 of the largest (score 2)"),
        ("bad", f"wn{LEVELS}", "-1.00 of the largest (score -4)"),
    ]
    assert page.all("p")[0] == ({"class": "words", "dir": "auto"}, "good bad")


def test_page_holds_all_samples_and_classes():
    one = of_text(["good", "film"], [[1.0, 2], [-3, 0]], ["yes", "no"])
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
    page = Page(format_text_page(two, title="Reviews"))
    assert page.all("title") == [({}, "Reviews")]
    assert [text for _, text in page.all("h2")] == ["Text 1", "Text 2", "Text 3"]
    chances = torch.softmax(one.logits[0], 0)
    headings = [f"yes {100 * chances[0]:.1f}%", f"no {100 * chances[1]:.1f}%"]
    assert [text for _, text in page.all("h3")] == headings * 3
    assert [text for _, text in page.words()] == ["good", "film"] * 6
    facts = [*page.all("dt"), *page.all("dd")]
    assert [text for _, text in facts] == [
        *("method", "rules", "start_layer", "whence"),
        *("tiba", "stable", "0", "1.2.3"),
    ]


def test_page_needs_nothing_outside():
    html = format_text_page(of_text(["a"], [1.0]))
    assert not re.search(r"https?:|<script|<link|@import|url\(|\bsrc=", html)


def test_page_themes():
    explanation = of_text(["a"], [1.0])
    assert "color-scheme: light dark" in format_text_page(explanation)
    dark = format_text_page(explanation, theme="dark")
    assert "color-scheme: dark" in dark
    assert THEMES["light"].background not in dark
    with pytest.raises(WhenceError, match="no theme 'pink'"):
        format_text_page(explanation, theme="pink")


def test_everything_is_escaped():
    evil = '<script>alert("1")</script>&amp;'
    explanation = of_text([evil], [1.0], evil)
    explanation.settings = {evil: evil}
    page = Page(format_text_page(explanation, title=evil))
    assert not page.all("script")
    assert page.words()[0][1] == evil
    assert page.all("h1")[0][1] == evil
    assert page.all("bdi")[0][1] == evil
    assert evil in [text for _, text in page.all("dt")]


def test_every_script_survives():
    words = ["שלום", "فيلم", "👩‍👩‍👧", "🎬", "好", "e\u0301"]
    page = Page(format_text_page(of_text(words, range(6))))
    assert [text for _, text in page.words()] == words
    assert page.all("p")[1][0]["dir"] == "auto"


def test_control_characters_are_shown_not_obeyed():
    explanation = of_text(["\x1b[2J", "a\nb"], [1.0, 0.5], "\x07bell")
    assert format_terminal_text(explanation).plain == "\ufffd[2J a b"
    assert "\x1b" not in format_text_page(explanation)
    assert "\x07" not in format_text_page(explanation)


def test_positions_where_tokens_are_unknown():
    explanation = of_text(["a", "b"], [1.0, 2.0])
    explanation.tokens = None
    assert [text for _, text in Page(format_text_html(explanation)).words()] == [
        "#0",
        "#1",
        "#2",
        "#3",
    ]
    assert format_terminal_text(explanation).plain.split() == ["#0", "#1", "#2", "#3"]


def test_legend_tells_the_sign():
    assert "against" in format_text_page(of_text(["a", "b"], [1.0, -1.0]))
    positive = format_text_page(of_text(["a", "b"], [1.0, 0.0]))
    assert "against" not in positive
    assert "low" in positive


def test_no_words_and_no_scores():
    assert "no words" in format_text_html(of_text([], []))
    assert format_terminal_text(of_text([], [])).plain == ""
    page = Page(format_text_html(of_text(["a", "b"], [0.0, 0.0])))
    assert {attrs["class"] for attrs, _ in page.words()} == {"wp0"}


def test_terminal_words_carry_colors():
    text = format_terminal_text(of_text(["bad", "film", "ever"], [-1.0, 0.4, 0.01]))
    assert text.plain == "bad film ever"
    spans = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert tuple(spans["bad"].bgcolor.triplet) == tuple(shade_terminal_word(-1))
    assert spans["bad"].bold
    assert not spans["film"].bold
    assert "ever" not in spans
    console = Console(force_terminal=True, color_system="truecolor", width=40)
    with console.capture() as capture:
        console.print(text)
    red, green, blue = shade_terminal_word(-1)
    assert f"48;2;{red};{green};{blue}mbad" in capture.get()


@pytest.mark.parametrize(
    "written",
    [
        "It 's|It's",
        "I don ' t know !|I don't know!",
        "he said ( once ) , [ twice ]|he said (once), [twice]",
        "the ' best ' film|the ' best ' film",
        "这 部 电 影 很 好 。|这部电影很好。",
        "这 is 好|这 is 好",
        "one|one",
    ],
)
def test_spaces_stand_as_people_write(written):
    taken_apart, whole = written.split("|")
    words = taken_apart.split()
    spaces = find_spaces(words)
    found = "".join(w + " " * space for w, space in zip(words, spaces, strict=True))
    assert found == whole


def test_what_cannot_be_shown_says_so():
    for function in (format_text_page, format_text_html, format_terminal_text):
        with pytest.raises(WhenceError, match="of images, which have no words"):
            function(of_image(np.eye(2)))
        with pytest.raises(WhenceError, match="NaN or infinite"):
            function(of_text(["a"], [float("nan")]))
    for function in (format_text_html, format_terminal_text):
        with pytest.raises(WhenceError, match="no sample 3; the samples are 0 to 0"):
            function(of_text(["a"], [1.0]), 3)
        with pytest.raises(WhenceError, match="no explained class 1"):
            function(of_text(["a"], [1.0]), 0, 1)
