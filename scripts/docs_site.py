"""Hooks of MkDocs: formulas become MathML, and pages outside of docs/ become part of the site."""

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```math\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`]+)`\$")


def render_formulas(markdown: str) -> str:
    """Replace formulas in TeX, as GitHub writes them, by MathML, which browsers draw themselves."""

    def block(match: re.Match[str]) -> str:
        rows = [row for row in match[2].strip().split("\n\n") if row]
        drawn = "".join(convert(" ".join(row.split()), display="block") for row in rows)
        return f'{match[1]}<div class="formula">{drawn}</div>'

    markdown = FENCE.sub(block, markdown)
    return INLINE.sub(lambda match: convert(match[1]), markdown)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Prepare the text of a page for the site."""
    return render_formulas(markdown)
