"""The pages say what the code says."""

import importlib.util
import re
from pathlib import Path

import pytest

from whence import methods

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_table_of_methods_is_that_of_the_registry():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    page = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    assert pictures.insert_table(page) == page, "run make pictures"


@pytest.mark.parametrize("method", methods.available())
def test_every_method_has_a_page_that_names_its_options(method):
    page = (DOCS / "methods" / f"{method}.md").read_text(encoding="utf-8")
    about = methods.describe(method)
    assert page.startswith(f"# `{method}`")
    for option in about.options:
        assert f"`{option}`" in page or f"`{option}=" in page, option
    second = " ".join(page.split("\n\n")[:2]).replace("\n", " ")
    said_not = re.search(r"not class-specific|same for every class", second, re.IGNORECASE)
    assert about.class_specific == (said_not is None)
    assert said_not or re.search(r"class-specific", second, re.IGNORECASE)


def pages() -> list[Path]:
    """Every page of the repository, none of what is made or installed in it."""
    found = (page.relative_to(ROOT) for page in ROOT.rglob("*.md"))
    made = ("build", "dist", "out")
    return sorted(p for p in found if p.parts[0] not in made and not p.parts[0].startswith("."))


@pytest.mark.parametrize("page", pages(), ids=str)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"""\]\(([^)\s]+)|(?:src|href)="([^"]+)""", text):
        where, _, heading = "".join(link).partition("#")
        if where.startswith("http"):
            continue
        aim = (ROOT / page.parent / where) if where else ROOT / page
        assert aim.exists(), where
        if heading:
            assert heading in headings(aim.read_text(encoding="utf-8")), link


def headings(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=str)
def test_lines_of_text_are_short(page):
    """Rows of tables, code and what the benchmark wrote cannot be broken."""
    if page.name in ("table.md", "overview.md"):
        return
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    assert [line for line in text.splitlines() if len(line) > 130 and line[0] != "|"] == []
