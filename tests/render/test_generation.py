import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from rich.console import Console

from tests.generations import make_generation
from whence import WhenceError
from whence.render import format_generation_html, format_generation_page
from whence.render.display import show_generation
from whence.render.files import format_csv, format_json
from whence.render.generation import make_view, rank_sources

CHROMIUM = shutil.which("chromium")


@pytest.mark.parametrize("by", ["token", "word", "sentence", {"who": "Tim has", "what": "a ball"}])
def test_the_pieces_are_the_text(by):
    generation = make_generation()
    view = make_view(generation, 0, by)
    shown = "".join(one.gap + one.text for one in view.pieces if not one.special)
    assert shown == generation.tokens.contents[0].rstrip()
    generated = [one for one in view.pieces if one.row is not None]
    assert [one.row for one in generated] == list(range(len(view.rows)))


def test_sources_are_ranked_by_their_share():
    sources = rank_sources(["a", "b", "c", "d"], np.array([1.0, 6.0, -4.0, 3.0]))
    assert [(one.name, one.share) for one in sources] == [("b", "60%"), ("d", "30%"), ("a", "10%")]
    assert sources[0].level == 20
    assert sources[1].level == 10
    assert rank_sources(["a"], np.array([-1.0])) == []


def test_a_page_needs_nothing_outside_itself():
    page = format_generation_page(make_generation(), title="<Tim>")
    assert "&lt;Tim&gt;" in page
    assert "<Tim>" not in page
    assert not re.search(r"(src|href)\s*=", page)
    assert "http" not in page
    assert page.count('role="status"') == 2
    with pytest.raises(WhenceError, match="There is no theme"):
        format_generation_page(make_generation(), theme="pink")


def test_hostile_text_stays_text():
    generation = make_generation()
    text = generation.tokens.contents[0].replace("Tim", "</script><b>\x1b\x00")
    shift = len(text) - len(generation.tokens.contents[0])
    generation.tokens.contents[0] = text
    first, *rest = generation.tokens.offsets[0][1:]
    moved = [None if o is None else (o[0] + shift, o[1] + shift) for o in rest]
    generation.tokens.offsets[0] = [None, (0, first[1] + shift), *moved]
    for content in (format_generation_page(generation), format_generation_html(generation)):
        assert "</script><b>" not in content
        assert "\x1b" not in content
        assert "\x00" not in content


def test_fragments_do_not_meet_in_one_notebook():
    generation = make_generation()
    marks = {re.search(r'id="(whence-\w+)-1"', generation._repr_html_())[1] for _ in range(2)}
    assert len(marks) == 2


def print_to_text(generation, **choice):
    stream = io.StringIO()
    show_generation(generation, console=Console(file=stream, width=90), **choice)
    return stream.getvalue()


def test_a_terminal_gets_each_word_with_its_sources():
    generation = make_generation()
    lines = print_to_text(generation[0]).splitlines()
    # The two tokens of "Sue" have scores 2, ..., 6 and 12, ..., 16, which are 90 together.
    assert lines[0].split() == ["Sue", "25.0%", "←", ".", "24%", "ball", "22%", "a", "20%"]
    assert [line.split()[0] for line in lines[:4]] == ["Sue", "has", "it", "."]


def test_a_terminal_gets_the_text_for_one_word():
    generation = make_generation()
    text = print_to_text(generation[0], word=1)
    assert text.splitlines()[0] == "has  50.0%"
    assert "Tim has a ball. Sue has it." in text
    with pytest.raises(WhenceError, match="no generated word 4; they are counted from 0 to 3"):
        print_to_text(generation[0], word=4)


def test_data_hold_all_samples():
    generation = make_generation()
    data = json.loads(format_json(generation))
    assert [one["output"] for one in data["samples"]] == [" Sue has it.", " sat.\n"]
    for sample, one in enumerate(data["samples"]):
        matrix = generation.matrix(sample, by="word")
        assert one["columns"] == matrix.columns
        assert one["scores"] == matrix.values.tolist()
    lines = list(csv.DictReader(io.StringIO(format_csv(generation))))
    sums = {"0": 0.0, "1": 0.0}
    for line in lines:
        sums[line["sample"]] += float(line["score"])
    assert sums["0"] == pytest.approx(generation.matrix(0, by="word").values.sum())
    assert sums["1"] == pytest.approx(generation.matrix(1, by="word").values.sum())


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium to open the page with")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def open_page(browser, content, tmp_path, **settings):
    path = tmp_path / "page.html"
    path.write_text(content, encoding="utf-8")
    page = browser.new_context(**settings).new_page()
    page.goto(f"file://{path}")
    return page


def list_shades(page, sample):
    """The shade of each piece of a text: its level, 0 if it has none."""
    found = page.locator(".generation").nth(sample).locator("[data-column]")
    kinds = found.evaluate_all("all => all.map(one => one.className)")
    levels = [re.search(r"w([np])(\d+)", kind) for kind in kinds]
    return [0 if m is None else int(m[2]) * (-1 if m[1] == "n" else 1) for m in levels]


@pytest.mark.slow
@pytest.mark.parametrize("is_fragment", [False, True], ids=["page", "notebook"])
def test_pointing_at_a_word_colours_what_it_came_from(browser, is_fragment, tmp_path):
    generation = make_generation(signed=True)
    views = [make_view(generation, sample, "word") for sample in range(2)]
    form = format_generation_html if is_fragment else format_generation_page
    page = open_page(browser, form(generation), tmp_path)
    first, second = (page.locator(".generation").nth(n) for n in range(2))
    assert list_shades(page, 0) == views[0].rows[0]["levels"]  # the first word is chosen
    word = first.locator('[data-row="2"]')
    word.hover()
    assert list_shades(page, 0) == views[0].rows[2]["levels"]
    assert list_shades(page, 1) == views[1].rows[0]["levels"]  # the other text stays
    assert word.get_attribute("aria-pressed") == "true"
    assert first.locator(".status").inner_text().startswith("it 50.0%")
    # A click holds the word, until the next one.
    word.click()
    first.locator('[data-row="0"]').hover()
    assert list_shades(page, 0) == views[0].rows[2]["levels"]
    word.click()
    first.locator('[data-row="0"]').hover()
    assert list_shades(page, 0) == views[0].rows[0]["levels"]
    # Keys: Tab reaches the chosen word, arrows move.
    page.mouse.move(0, 0)
    first.locator('[tabindex="0"]').focus()
    for key, row in [("ArrowRight", 1), ("End", 3), ("ArrowLeft", 2), ("Home", 0)]:
        page.keyboard.press(key)
        assert list_shades(page, 0) == views[0].rows[row]["levels"]
    assert second.locator('[tabindex="0"]').count() == 1


@pytest.mark.slow
def test_a_phone_chooses_by_touch(browser, tmp_path):
    generation = make_generation()
    size = {"width": 360, "height": 640}
    page = open_page(
        browser, format_generation_page(generation), tmp_path, viewport=size, has_touch=True
    )
    page.locator('.generation [data-row="3"]').first.tap()
    assert list_shades(page, 0) == make_view(generation, 0, "word").rows[3]["levels"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
