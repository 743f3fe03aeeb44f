"""The pages say what the code says."""

import importlib.util
import re
from pathlib import Path

import pytest

from whence import methods

DOCS = Path(__file__).parents[1] / "docs"


def test_the_table_of_methods_is_that_of_the_registry():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    page = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    assert pictures.with_table(page) == page, "run make pictures"


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


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    for link in links:
        assert link.startswith("http") or (page.parent / link).exists(), link
