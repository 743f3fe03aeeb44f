"""Templates: escaping, missing variables, the shared page and its style."""

from pathlib import Path

import jinja2
import pytest
from markupsafe import Markup

import whence
from tests.html_pages import parse_html
from tests.render.samples import explain_text
from whence.render.colors import THEMES
from whence.render.shades import LEVELS, name_shade, shade_word
from whence.render.templates import read_asset, render_macro, render_template
from whence.render.words import list_words


def test_the_style_holds_the_tested_colors():
    style = render_template("render/templates/words.css.j2", theme="auto")
    for theme in THEMES:
        for level in range(-LEVELS, LEVELS + 1):
            name = name_shade(level)
            red, green, blue = shade_word(level / LEVELS, theme)
            assert f"--whence-{name}: #{red:02x}{green:02x}{blue:02x};" in style
            assert f".whence .{name} {{ background: var(--whence-{name}); }}" in style
    assert "@media (prefers-color-scheme: dark)" in style
    dark = render_template("render/templates/words.css.j2", theme="dark")
    assert "@media" not in dark


def test_variables_are_escaped_and_markup_is_not():
    page = render_template("render/templates/base.html.j2", title="<b>&")
    assert parse_html(page).find_all("h1")[0].text == "<b>&"
    words = list_words(explain_text(["<i>", "film"], [2.0, 1.0]))
    html = render_macro("render/templates/words.html.j2", "spans", words)
    assert html == '<span class="wp20">&lt;i&gt;</span> <span class="wp10">film</span>'
    assert isinstance(html, Markup)


def test_a_missing_variable_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'title' is undefined"):
        render_template("render/templates/base.html.j2")


def test_every_template_and_asset_can_be_loaded():
    package = Path(whence.__file__).parent
    for path in package.glob("*/templates/*"):
        name = str(path.relative_to(package))
        if path.suffix == ".j2":
            assert path.read_text(encoding="utf-8").startswith("{#"), "says what it is for"
        else:
            assert read_asset(name) == path.read_text(encoding="utf-8")
