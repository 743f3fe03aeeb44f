"""The page in a real browser: sorting, filtering, themes, widths, a thousand inputs."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.fixtures import HOSTILE
from tests.saved import make_photo
from whence.explanation import ExplainedClass
from whence.faithfulness import STEPS
from whence.render.colors import measure_contrast
from whence.report.entry import DeletionCurves, Entry, EntryResult
from whence.report.images import encode_map, encode_photo
from whence.report.page import render_page

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium to open the page with")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Open a page; afterwards check that it had no error and requested nothing from outside."""
    contexts, wrong = [], []

    def open_page(path, **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.on("request", lambda r: r.url.startswith(("file:", "data:")) or wrong.append(r.url))
        tab.goto(f"file://{path}")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def list_names(tab) -> list[str]:
    return tab.locator("#inputs > li .name").all_text_contents()


def list_facts(tab, fact: str) -> list[str]:
    return tab.locator("#inputs > li").evaluate_all(f"all => all.map(one => one.dataset.{fact})")


def wait_for_page(tab) -> None:
    """Wait until the script has shown what was chosen: a timeout, then the next frame."""
    frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
    tab.evaluate(f"() => new Promise(done => setTimeout(() => {frames}))")


@pytest.fixture
def page(here, report):
    for seed in range(3, 8):
        make_photo(seed=seed).save(here / "photos" / f"d{seed}.png")
    report("photos", "--methods", "gae,random", code=1)
    return here / "report.html"


def test_sorting(page, visit):
    tab = visit(page)
    given = list_names(tab)
    assert given == sorted(
        [HOSTILE, "a.png", "b.jpg", "c.png", *(f"d{n}.png" for n in range(3, 8))]
    )
    tab.select_option("[name=sort]", "probability")
    tab.select_option("[name=order]", "down")
    wait_for_page(tab)
    *values, failed = list_facts(tab, "probability")
    assert failed == ""  # what has no value comes last, whichever way round
    assert [float(v) for v in values] == sorted(map(float, values), reverse=True)
    for method, at in (("random", 1), ("gae", 0)):
        tab.select_option("[name=method]", method)
        tab.select_option("[name=order]", "up")
        tab.select_option("[name=sort]", "faithfulness")
        wait_for_page(tab)
        *values, _ = [one.split(" ")[at] for one in list_facts(tab, "faithfulness")]
        assert [float(v) for v in values] == sorted(map(float, values))
    tab.click("button[type=reset]")
    wait_for_page(tab)
    assert list_names(tab) == given


def test_filtering(page, visit):
    tab = visit(page)
    count = tab.locator("#count")
    assert count.text_content() == "9 of 9 shown"
    tab.fill("[name=find]", "D5 png")
    count.filter(has_text="1 of 9").wait_for()
    assert list_names(tab) == ["d5.png"]
    tab.fill("[name=find]", "")
    tab.select_option("[name=state]", "failed")
    count.filter(has_text="1 of 9").wait_for()
    assert list_names(tab) == ["c.png"]
    tab.select_option("[name=state]", "")
    classes = [one for one in list_facts(tab, "class") if one]
    offered = tab.locator("[name=class] option").all_text_contents()
    assert offered == ["all", *sorted(set(classes))]
    tab.select_option("[name=class]", classes[0])
    count.filter(has_text=f"{classes.count(classes[0])} of 9").wait_for()
    assert set(list_facts(tab, "class")) == {classes[0]}
    tab.click("button[type=reset]")
    chances = sorted(float(one) for one in list_facts(tab, "probability") if one)
    middle = 100 * (chances[3] + chances[4]) / 2
    tab.fill("[name=probabilityFrom]", str(middle))
    count.filter(has_text="4 of 9").wait_for()
    assert min(float(one) for one in list_facts(tab, "probability")) == chances[4]
    tab.fill("[name=probabilityFrom]", "")
    tab.fill("[name=faithfulnessTo]", "-91")
    count.filter(has_text="0 of 9").wait_for()


def test_by_keyboard_alone(page, visit):
    tab = visit(page)
    tab.keyboard.press("Tab")
    tab.keyboard.type("d5")
    tab.locator("#count").filter(has_text="1 of 9").wait_for()
    reached = []
    for _ in range(12):
        reached.append(tab.evaluate("document.activeElement.name || document.activeElement.type"))
        tab.keyboard.press("Tab")
    wanted = "find class probabilityFrom probabilityTo faithfulnessFrom faithfulnessTo method state"
    assert reached == [*wanted.split(), "sort", "order", "opacity", "reset"]


def test_the_photo_and_the_map_are_visible_and_can_be_faded(page, visit):
    tab = visit(page)
    box = tab.locator("#inputs > li .map").first
    over = np.asarray(take_screenshot(box), dtype=float)
    assert over.std() > 5
    tab.locator("[name=opacity]").evaluate(
        "one => { one.value = 0; one.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    bare = np.asarray(take_screenshot(box), dtype=float)
    plain = np.asarray(take_screenshot(tab.locator("#inputs > li .panel").first), dtype=float)
    assert np.abs(bare - over).mean() > 2
    assert np.abs(bare - plain).mean() < 1


def take_screenshot(locator) -> Image.Image:
    return Image.open(io.BytesIO(locator.screenshot())).convert("RGB").resize((64, 64))


def test_on_a_phone_the_fields_wait_behind_a_button(page, visit):
    tab = visit(page, viewport={"width": 390, "height": 844})
    more = tab.get_by_role("button", name="Sort and filter")
    assert not tab.locator("[name=sort]").is_visible()
    assert more.get_attribute("aria-expanded") == "false"
    more.press("Enter")
    assert more.get_attribute("aria-expanded") == "true"
    tab.select_option("[name=sort]", "name")
    tab.select_option("[name=order]", "down")
    wait_for_page(tab)
    assert list_names(tab)[0] == "d7.png"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_themes_and_widths(page, visit, scheme, width):
    tab = visit(page, color_scheme=scheme, viewport={"width": width, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(23, 24, 28)")
    for place in ("h1", ".lead", "figcaption", "form label", ".name", ".meaning li", "pre"):
        ink = tab.locator(place).first.evaluate("one => getComputedStyle(one).color")
        assert measure_contrast(parse_color(ink), parse_color(ground)) >= 4.5, place


def parse_color(color: str) -> list[int]:
    return [int(channel) for channel in color.removeprefix("rgb(").removesuffix(")").split(",")]


def test_hostile_names_do_nothing(page, visit):
    tab = visit(page)
    tab.wait_for_timeout(200)  # a script that got in would have run by now
    assert HOSTILE in list_names(tab)
    assert tab.locator("#inputs img:not([src^='data:'])").count() == 0


def test_a_thousand_photos_stay_usable(tmp_path, visit):
    rng = np.random.default_rng(0)
    chance = tuple(np.linspace(0.9, 0.1, len(STEPS)))
    curves = DeletionCurves(0.0, chance, chance[::-1])
    entries = []
    for number in range(1000):
        scores = rng.random((14, 14))
        explained = ExplainedClass(0, "cat", number / 1000, scores.ravel())
        result = EntryResult("gae", explained, encode_map(scores), curves)
        shown = encode_photo(make_photo(400, 300, seed=number))
        entries.append(Entry(f"{number}.jpg", "image", "cat", (result,), shown, 4 / 3))
    content = render_page("many", entries, {})
    assert len(content) < 25e6
    (tmp_path / "many.html").write_text(content, encoding="utf-8")
    tab = visit(tmp_path / "many.html")
    assert tab.locator("#count").text_content() == "1000 of 1000 shown"
    tab.fill("[name=find]", "999.jpg")
    tab.locator("#count").filter(has_text="1 of 1000").wait_for()
    tab.select_option("[name=sort]", "probability")
    tab.select_option("[name=order]", "down")
    tab.fill("[name=find]", "")
    tab.locator("#count").filter(has_text="1000 of 1000").wait_for()
    assert tab.locator("#inputs .name").first.text_content() == "999.jpg"


def test_a_result_without_its_model_on_a_wide_and_a_narrow_screen(here, report, visit):
    from tests.distributed.results import explain_many

    pytest.importorskip("pyarrow")
    explain_many(["photos"], here / "stored")
    run = here / "stored" / "_whence" / "run.json"
    run.write_text(run.read_text().replace('"model": null', '"model": "/gone/vit"', 1))
    (here / "photos" / "a.png").unlink()
    report("stored", code=1)
    for width in (1300, 380):
        tab = visit(here / "report.html", viewport={"width": width, "height": 800})
        sizes = tab.locator(".apart .panel").evaluate_all(
            "all => all.map(one => [one.clientWidth, one.clientHeight])"
        )
        assert len(sizes) == 6
        assert all(min(size) > 60 for size in sizes)
        whole = tab.evaluate("document.documentElement.scrollWidth")
        assert whole <= width
        behind = tab.locator(".apart .map").evaluate_all(
            "all => all.map(one => getComputedStyle(one, '::before').backgroundImage)"
        )
        assert behind == ["none"] * 3
