"""Pages of the site from the notebooks of examples/, with what their cells show."""

import base64
import html
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
# As high as what it shows.
FRAME = (
    'class="shown" title="What the cell shows" '
    "onload=\"this.style.height = this.contentDocument.documentElement.scrollHeight + 8 + 'px'\""
)
STYLE = "<style>:root { color-scheme: light dark } body { margin: 8px }</style>"
PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}


@dataclass
class NotebookPage:
    """A notebook as Markdown, and the files that it shows, by their names beside it."""

    name: str
    markdown: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def read_notebook(path: Path) -> NotebookPage:
    """Read a notebook cell by cell; nothing is run."""
    page = NotebookPage(path.stem)
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(move_links(source))
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := show_output(output, page))]
    page.markdown = "\n\n".join(parts) + "\n"
    return page


def move_links(text: str) -> str:
    """Lead links to where pages of the site are."""
    text = text.replace("](../docs/", "](../")
    return re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text)


def show_output(output: dict[str, Any], page: NotebookPage) -> str:
    """Show what a cell printed or returned, the richest form of it."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    for kind, ending in PICTURES.items():
        if kind in data:
            content = "".join(data[kind])
            raw = content.encode() if ending == "svg" else base64.b64decode(content)
            name = f"{page.name}-{len(page.files) + 1}.{ending}"
            page.files[name] = raw
            return f"![What the cell shows]({name})"
    if "text/html" in data:
        content = html.escape(STYLE + "".join(data["text/html"]))
        # A frame, so that the styles and scripts of what is shown stay among themselves.
        return f'<iframe {FRAME} srcdoc="{content}"></iframe>'
    text = "".join(data.get("text/plain", "")).rstrip()
    return f"```text\n{text}\n```" if text else ""


def list_notebooks() -> list[NotebookPage]:
    """Read all notebooks of the examples."""
    return [read_notebook(path) for path in sorted(EXAMPLES.glob("*.ipynb"))]
