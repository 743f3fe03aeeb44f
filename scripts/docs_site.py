"""Hooks of MkDocs: formulas become MathML, and pages outside of docs/ become part of the site."""

import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import llms  # beside this file, which MkDocs loads by its path
import notebook_pages

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`]+)`\$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the top of the repository, and the notebooks."""
    for page, source in llms.TOP_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    for page in notebook_pages.list_notebooks():
        files.append(File.generated(config, f"notebooks/{page.name}.md", content=page.markdown))
        for name, content in page.files.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace formulas in TeX by MathML, and links to the top of the repository by the pages."""
    for page, source in llms.TOP_PAGES.items():
        markdown = re.sub(rf"\]\((\.\./)*{re.escape(source)}", f"]({page}", markdown)
    markdown = FENCE.sub(lambda match: render_block(match[1]), markdown)
    return INLINE.sub(lambda match: convert(match[1]), markdown)


def render_block(tex: str) -> str:
    """Render a formula that stands by itself; wide ones scroll on a phone."""
    mathml = convert(" ".join(tex.split()), display="block")
    return f'<div class="formula" tabindex="0">{mathml}</div>'


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt with the addresses of the site, and all pages in one file."""
    site = Path(config.site_dir)
    text = re.sub(r"(README|(\w[\w-]*))\.md\)", link_page, llms.make_index())
    (site / "llms.txt").write_text(text, encoding="utf-8")
    (site / "llms-full.txt").write_text(llms.make_whole(), encoding="utf-8")


def link_page(match: re.Match[str]) -> str:
    """Name the page that MkDocs makes of a file: README.md is the index of its folder."""
    return f"{match[2] or 'index'}.html)"
