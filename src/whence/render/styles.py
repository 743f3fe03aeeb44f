"""The style sheets of pages and fragments, in light and dark."""

from __future__ import annotations

from whence.render.colors import hex_of
from whence.render.themes import THEMES
from whence.render.words import LEVELS, shade

_WORDS = """
.whence { background: var(--whence-background); color: var(--whence-ink);
  print-color-adjust: exact; -webkit-print-color-adjust: exact;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.whence h3 { font-size: 1rem; font-weight: 600; margin: 1.1rem 0 .3rem; display: flex;
  justify-content: space-between; gap: 1rem; overflow-wrap: anywhere; color: inherit; }
.whence .percent, .whence .note, .whence .legend, .whence footer { color: var(--whence-muted);
  font-weight: 400; }
.whence .bar { height: 3px; background: var(--whence-track); }
.whence .bar div { height: 100%; background: var(--whence-bar); }
.whence .words { font-size: 1.05rem; line-height: 1.9; margin: .6rem 0; overflow-wrap: anywhere; }
.whence .words span { padding: .16em .08em; border-radius: .2em;
  -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.whence .legend { display: flex; flex-wrap: wrap; align-items: center; gap: .25rem .6rem;
  font-size: .8rem; margin: .6rem 0; }
.whence .ramp { display: inline-flex; border: 1px solid var(--whence-track); }
.whence .ramp i { width: .8rem; height: .8rem; }
"""

_PAGE = """
* { box-sizing: border-box; }
html, body { margin: 0; background: var(--whence-background); }
main.whence { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem; }
main.whence h1 { font-size: 1.6rem; font-weight: 600; margin: 0 0 .4rem; overflow-wrap: anywhere; }
main.whence h2 { font-size: .8rem; font-weight: 400; margin: 0; color: var(--whence-muted); }
main.whence section { border-top: 1px solid var(--whence-track); padding: 1.1rem 0;
  margin-top: 1.1rem; }
main.whence footer { border-top: 1px solid var(--whence-track); font-size: .8rem; }
main.whence dl { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 1rem 0; }
main.whence dl div { display: flex; gap: .4rem; }
main.whence dd { margin: 0; color: var(--whence-ink); overflow-wrap: anywhere; }
"""

# Notebooks have a theme of their own, whatever the system prefers.
_NOTEBOOKS = {
    "dark": 'body[data-jp-theme-light="false"] .whence, body.vscode-dark .whence',
    "light": 'body[data-jp-theme-light="true"] .whence, body.vscode-light .whence',
}


def words_style(theme: str) -> str:
    """The style of coloured words; "auto" follows the notebook, or what the system prefers."""
    if theme != "auto":
        return _colors(theme, ":root, .whence") + _WORDS + _shades()
    return "".join(
        [
            _colors("light", ":root, .whence"),
            f"@media (prefers-color-scheme: dark) {{\n{_colors('dark', ':root, .whence')}}}\n",
            *(_colors(name, places) for name, places in _NOTEBOOKS.items()),
            _WORDS,
            _shades(),
        ]
    )


def page_style(theme: str) -> str:
    """The style of a page around them."""
    return f":root {{ color-scheme: {'light dark' if theme == 'auto' else theme}; }}\n" + _PAGE


def switched_style(dark: str) -> str:
    """Colours and shades for a page that says by itself when it is dark.

    Args:
        dark: A selector of what is dark then.
    """
    return _colors("light", ":root") + _colors("dark", dark) + _shades()


def level_class(level: int) -> str:
    """The CSS class of a shade."""
    return f"w{'n' if level < 0 else 'p'}{abs(level)}"


def _colors(theme: str, places: str) -> str:
    """The theme's colours and its shades as CSS variables."""
    colors = {field: str(color) for field, color in vars(THEMES[theme]).items()}
    for level in range(-LEVELS, LEVELS + 1):
        colors[level_class(level)] = hex_of(shade(level / LEVELS, theme))
    return f"{places} {{ {' '.join(f'--whence-{k}: {v};' for k, v in colors.items())} }}\n"


def _shades() -> str:
    names = [level_class(level) for level in range(-LEVELS, LEVELS + 1)]
    return "".join(f".whence .{name} {{ background: var(--whence-{name}); }}\n" for name in names)
