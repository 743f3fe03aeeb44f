"""The fields that sort and filter; page.js listens to them by their names."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from whence._util.text import to_printable

_STATES = (("", "all"), ("explained", "explained"), ("failed", "failed"))
_KEYS = (
    ("given", "order given"),
    *((name, name) for name in ("name", "class", "probability", "faithfulness")),
)
_ORDERS = (("up", "upwards"), ("down", "downwards"))


def form(methods: Sequence[str], photos: bool) -> str:
    """The form, which stays hidden until the script runs.

    Args:
        methods: Whose faithfulness can be chosen.
        photos: Whether there are maps over photos.
    """
    names = [(name, name) for name in map(to_printable, methods)]
    fields = (
        '<label class="find">Find <input name="find" type="search" autocomplete="off"></label>',
        '<button class="more" type="button" aria-expanded="false">Sort and filter</button>',
        _select("Class", "class", [("", "all")]),
        _range("Probability in %", "probability", 0, 100),
        _range("Faithfulness", "faithfulness", -90, 90),
        _select("Faithfulness of", "method", names) if len(names) > 1 else "",
        _select("Show", "state", _STATES),
        _select("Sort by", "sort", _KEYS),
        _select("Order", "order", _ORDERS),
        _OPACITY if photos else "",
        '<button type="reset">Reset</button>',
        '<output id="count" aria-live="polite"></output>',
    )
    inside = "\n".join(filter(None, fields))
    return f'<form id="choose" role="search" aria-label="Inputs" hidden>\n{inside}\n</form>'


_OPACITY = (
    '<label>Map over photo <input name="opacity" type="range" min="0" max="100" value="60"></label>'
)


def _select(title: str, name: str, options: Sequence[tuple[str, str]]) -> str:
    inside = "".join(
        f'<option value="{escape(value)}">{escape(shown)}</option>' for value, shown in options
    )
    return f'<label>{title} <select name="{name}">{inside}</select></label>'


def _range(title: str, name: str, least: int, most: int) -> str:
    fields = (
        f'<input name="{name}{end}" type="number" step="any" min="{least}" max="{most}" '
        f'placeholder="{value}" aria-label="{title}, {word}">'
        for end, word, value in (("From", "at least", least), ("To", "at most", most))
    )
    inside = " to ".join(fields)
    return f'<div class="range" role="group"><span>{title}</span><div>{inside}</div></div>'
