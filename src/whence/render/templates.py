"""HTML and CSS from Jinja2 templates, escaped by default.

A template is named by its path inside the package, and may extend the page that all share::

    {# benchmark/templates/page.html.j2 #}
    {% extends "render/templates/base.html.j2" %}
    {% import "render/templates/words.html.j2" as words %}
    {% block style %}{{ read_asset("benchmark/templates/page.css") }}{% endblock %}
    {% block content %}<p>{{ note|printable }}</p>{{ words.legend(signed) }}{% endblock %}

    page = render_template("benchmark/templates/page.html.j2", title="Results", note=note, ...)

Every variable is escaped, except for the `Markup` that `render_template` and `read_asset` return. A
variable that was not passed is an error. The filter `printable` replaces control characters, `uri`
encodes bytes as a data URI, and `name_shade` gives the CSS class of a word's shade.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whence._util.text import data_uri, to_printable
from whence.render.shades import LEVELS, list_css_colors, name_shade

_PACKAGE = Path(__file__).parents[1]


def render_template(name: str, **context: object) -> Markup:
    """Fill in a template, named by its path inside the package, with its variables."""
    return Markup(_environment().get_template(name).render(context))


def render_macro(name: str, macro: str, *arguments: object) -> Markup:
    """Fill in one macro of a template, for pieces that are put together elsewhere."""
    return Markup(getattr(_environment().get_template(name).module, macro)(*arguments))


@cache
def read_asset(name: str) -> Markup:
    """The content of a style sheet or script, named by its path inside the package."""
    return Markup((_PACKAGE / name).read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"printable": to_printable, "uri": data_uri, "name_shade": name_shade}
    environment.globals |= {
        "read_asset": read_asset,
        "levels": LEVELS,
        "themes": {theme: list_css_colors(theme) for theme in ("light", "dark")},
    }
    return environment
