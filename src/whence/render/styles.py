"""The style sheets of pages and fragments, in light and dark."""

from __future__ import annotations

from whence.render.templates import render_template


def words_style(theme: str) -> str:
    """The style of coloured words; "auto" follows the notebook, or what the system prefers."""
    return str(render_template("render/templates/words.css.j2", theme=theme))


def page_style(theme: str) -> str:
    """The style of a page around them."""
    return str(render_template("render/templates/page.css.j2", theme=theme))


def switched_style(dark: str) -> str:
    """Colours and shades for a page that says by itself when it is dark.

    Args:
        dark: A selector of what is dark then.
    """
    return str(render_template("render/templates/switched.css.j2", dark=dark))
