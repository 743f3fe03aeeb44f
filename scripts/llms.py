"""Write docs/llms.txt: the pages of the site with a sentence each, for language models.

python scripts/llms.py
"""

import re
from pathlib import Path
from typing import Any

import yaml
from notebook_pages import EXAMPLES, read_notebook

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUT = DOCS / "llms.txt"
TOP_PAGES = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}  # not in docs/
BY_TITLE = ("Methods", "Results")  # sections whose headings say enough
INTRODUCTION = """# whence

> whence explains decisions of PyTorch Transformers: from which patches, words or tokens of the
> input did an output come? One call, `whence.explain(photo_or_text, model=...)`, or
> `whence.Explainer(model).explain(inputs, target=..., against=..., method=...)` for tensors. 24
> methods, a command line (`whence explain`, `generate`, `report`, `benchmark`, `serve`) and a page.
"""


def list_sections(nav: list[dict[str, Any]]) -> dict[str, list[str]]:
    """List the pages of each section of the navigation, in order."""
    sections: dict[str, list[str]] = {}
    for section in nav:
        ((title, pages),) = section.items()
        sections[title] = [
            page if isinstance(page, str) else next(iter(page.values())) for page in pages
        ]
    return sections


def read_page(page: str) -> str:
    """Read a page of the site: one of docs/, of the top of the repository, or a notebook."""
    if page.startswith("notebooks/"):
        return read_notebook(EXAMPLES / f"{Path(page).stem}.ipynb").markdown
    source = ROOT / TOP_PAGES[page] if page in TOP_PAGES else DOCS / page
    return source.read_text(encoding="utf-8")


def describe_page(text: str) -> tuple[str, str]:
    """Find the heading of a page and its first sentence, without Markdown's signs."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    title = re.search(r"^# (.+)$", text, re.M)
    blocks = [block.strip() for block in text.split("\n\n")]
    blocks = [re.sub(r"^#+ .+\n?", "", block) for block in blocks]
    prose = next((b for b in blocks if b and b[0] not in "#|!<-:" and not b.startswith("1.")), "")
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    plain = re.sub(r"(?<!\w)\*{1,2}([^*]+)\*{1,2}", r"\1", plain).removeprefix("What you get: ")
    sentence = re.match(r".+?[.?](?= |$)", plain)
    return title[1].replace("`", "") if title else "", sentence[0] if sentence else plain


def make_index() -> str:
    """Make the text of llms.txt from the navigation and the pages as they are."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [INTRODUCTION]
    for section, pages in list_sections(config["nav"]).items():
        lines.append(f"## {section}\n")
        for page in pages:
            title, sentence = describe_page(read_page(page))
            told = f": {sentence}" if sentence and section not in BY_TITLE else ""
            lines.append(f"- [{title}]({page}){told}")
        lines.append("")
    return "\n".join(lines)


def make_whole() -> str:
    """Make llms-full.txt: all pages of llms.txt one after the other, as they are written."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    parts = [INTRODUCTION]
    for pages in list_sections(config["nav"]).values():
        for page in pages:
            text = re.sub(r"<iframe.*?</iframe>", "", read_page(page), flags=re.DOTALL)
            parts.append(f"<!-- {page} -->\n{text.strip()}\n")
    return "\n".join(parts)


def main() -> None:
    """Write the file."""
    OUT.write_text(make_index(), encoding="utf-8")
    print(OUT)


if __name__ == "__main__":
    main()
