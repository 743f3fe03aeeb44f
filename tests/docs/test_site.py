"""The site builds strictly, asks for nothing outside itself, and shows formulas and docstrings."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_pages_for_language_models_is_current(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    llms = load_script("llms")
    assert llms.OUT.read_text(encoding="utf-8") == llms.make_index(), "run python scripts/llms.py"


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    pages += [f"notebooks/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")]
    # What the benchmark wrote for many models is linked from one page.
    overview = (ROOT / "docs" / "results" / "protocols.md").read_text(encoding="utf-8")
    listed += [f"results/{link}" for link in re.findall(r"\((protocols/[^)]+\.md)\)", overview)]
    assert set(pages) - set(listed) == set(), "name the page in mkdocs.yml, under nav"


def test_pictures_of_the_gallery_are_made_by_its_code():
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    saved = re.findall(r"""save\("([\w-]+)\.""", text)
    shown = re.findall(r"\(images/gallery/([\w-]+)\.", text)
    assert shown == saved


def test_a_notebook_becomes_a_page_with_what_its_cells_show():
    pages = load_script("notebook_pages")
    page = pages.read_notebook(ROOT / "examples" / "vision.ipynb")
    notebook = json.loads((ROOT / "examples" / "vision.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert page.markdown.count("```python\n") == len(code)
    assert all(f"]({name})" in page.markdown for name in page.files)
    assert all(content[:2] in (b"\xff\xd8", b"\x89P", b"<s") for content in page.files.values())
    assert ".ipynb)" not in page.markdown
    assert "../docs" not in page.markdown


def test_formulas_are_ones_that_can_be_drawn():
    convert = pytest.importorskip("latex2mathml.converter").convert
    drawn = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for tex in re.findall(r"^```math\n(.*?)^```$", page.read_text(), re.M | re.S):
            mathml = convert(" ".join(tex.split()), display="block")
            assert "\\" not in re.sub(r"&[^;]+;", "", mathml), f"{page}: {tex}"
            drawn += 1
    assert drawn > 20


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    loading = re.compile(r"""<(?:script|img|iframe|link|source)[^>]*(?:src|href)=["']?https?:""")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        assert not loading.search(page.read_text(encoding="utf-8")), page
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"@import|url\(['\"]?https?:", styles)


@pytest.mark.slow
def test_formulas_docstrings_and_search_are_there(site):
    assert (site / "methods" / "tiba.html").read_text(encoding="utf-8").count("<math") == 1
    assert "explain_generation" in (site / "api" / "explain.html").read_text(encoding="utf-8")
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "Generic Attention-model Explainability" in index
    assert "howto/clip.html" in (site / "llms.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_addresses_for_language_models_exist(site):
    addresses = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(addresses) > 60
    assert [one for one in addresses if not (site / one).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_opened_from_a_disk_fit_and_can_be_searched(site, width):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium was found; CHROMIUM names one")
    wrong = []
    with playwright.sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.on("request", lambda asked: wrong.append(asked.url) if "http" in asked.url else None)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        for name in ("index", "howto/clip", "methods/tiba", "results/index", "api/explain"):
            page.goto((site / f"{name}.html").as_uri())
            beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert beyond <= 0, name
        if width < 1000:
            page.click("label[for=__search]:visible")
        page.click("[data-md-component=search-query]", force=True)
        page.keyboard.type("balanced gradients")
        page.wait_for_selector(".md-search-result__item")
        browser.close()
    assert wrong == []
