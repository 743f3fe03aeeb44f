"""Controls, keys and messages of the page, in a headless Chromium."""

from pathlib import Path

import numpy as np
import pytest

from tests.web.browser import (
    choose_methods,
    decode_pixels,
    explain_sample,
    press,
    show_view,
    wait_for_maps,
)
from tests.web.conftest import serve
from whence import demo, explain
from whence.render.colors import get_colormap
from whence.render.overlay import (
    is_signed,
    stretch_contrast,
    tabulate_colors,
    tabulate_opacities,
    upsample,
)
from whence.web.service import ExplanationService

pytestmark = pytest.mark.slow


@pytest.fixture
def desktop(browser, address):
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    yield page
    context.close()


def test_the_browser_paints_what_the_library_paints(desktop):
    painted = decode_pixels(explain_sample(desktop)[0])
    explanation = explain(demo.PHOTO, classes=2)
    scores = explanation.scores[0, 0].double().numpy().reshape(explanation.grid)
    colors = get_colormap("auto", is_signed(scores))
    shares = upsample(stretch_contrast(scores), (256, 256))
    levels = 128 + 127 * shares if colors.diverging else 255 * np.clip(shares, 0, 1)
    levels = np.round(levels).astype(int)
    opaque = tabulate_opacities(colors, 0.6)[levels]
    assert np.abs(painted[..., 3] - opaque.astype(int)).max() <= 3
    strong = opaque > 60  # where browsers do not round colours that are see-through
    difference = np.abs(painted[..., :3] - tabulate_colors(colors)[levels].astype(int))[strong]
    assert difference.max() <= 6


def test_controls_repaint_without_a_request(desktop):
    (before, _) = explain_sample(desktop)
    desktop.wait_for_timeout(500)
    asked = []
    desktop.on("request", lambda request: asked.append(request.url))
    pictures = [before]
    for control, value in {"opacity": "1", "colormap": "lagoon", "threshold": "0.5"}.items():
        box = desktop.locator(f"[data-control={control}]").first
        box.select_option(value) if control == "colormap" else box.fill(value)
        desktop.wait_for_timeout(200)
        pictures.append(wait_for_maps(desktop, 2)[0])
    assert len(set(pictures)) == 4
    # Half of the largest and less is not shown.
    seen = [(decode_pixels(picture)[..., 3] > 0).sum() for picture in pictures]
    assert seen[3] < 0.5 * seen[2]
    assert asked == []


def test_hover_and_arrow_keys_tell_the_score_of_a_patch(desktop):
    explain_sample(desktop)
    explanation = explain(demo.PHOTO, classes=2)
    rows, columns = explanation.grid
    first = desktop.locator(".hero .map")
    box = first.bounding_box()
    at = {"x": box["width"] * 2.5 / columns, "y": box["height"] * 1.5 / rows}
    first.hover(position=at)
    score = float(explanation.scores[0, 0, columns + 2])
    assert read_score(first) == ("row 2, column 3", pytest.approx(score, rel=1e-2))
    desktop.mouse.move(0, 0)
    first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        desktop.keyboard.press(key)
    score = float(explanation.scores[0, 0, columns + 1])
    assert read_score(first) == ("row 2, column 2", pytest.approx(score, rel=1e-2))


def read_score(figure):
    place, _, rest = figure.locator(".readout").inner_text().partition(": ")
    return place, float(rest.split()[0])


def test_scores_are_told_where_the_model_saw_a_part_of_the_photo(browser, data):
    service = ExplanationService.load([str(data / "vit_tiny_in1k_hf")])
    with serve(service) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(address)
        explain_sample(page)
        explanation = explain(demo.PHOTO, str(data / "vit_tiny_in1k_hf"), classes=2)
        (photo,), (rows, columns) = explanation.photos, explanation.grid
        frame = page.locator(".hero .frame:not(.alone)").bounding_box()
        scale = frame["width"] / photo.image.width
        row, column = 3, columns - 1
        # The middle of a patch, by its place in the whole photo.
        x, y = photo.locate((column + 0.5) / columns, (row + 0.5) / rows)
        page.mouse.move(frame["x"] + scale * x, frame["y"] + scale * y)
        score = float(explanation.scores[0, 0, row * columns + column])
        place = f"row {row + 1}, column {column + 1}"
        assert read_score(page.locator(".hero .map")) == (place, pytest.approx(score, rel=1e-2))
        # Beside the part that it saw, there is no score.
        page.mouse.move(frame["x"] + 3, frame["y"] + 3)
        assert page.locator(".hero .readout").inner_text() == ""
        page.close()


def test_a_score_is_told_as_a_share_of_the_strongest(desktop):
    explain_sample(desktop)
    choose_methods(desktop, ["input_x_gradient"])
    press(desktop, "Explain")
    desktop.wait_for_selector(".hero .map[data-method=input_x_gradient]")
    scores = explain(demo.PHOTO, classes=2, method="input_x_gradient").scores[0, 0]
    strongest, lowest = scores.abs().max(), int(scores.argmin())
    share = round(float(100 * -scores[lowest] / strongest))
    rows, columns = explain(demo.PHOTO).grid
    box = desktop.locator(".hero .map").bounding_box()
    row, column = divmod(lowest, columns)
    desktop.mouse.move(
        box["x"] + box["width"] * (column + 0.5) / columns,
        box["y"] + box["height"] * (row + 0.5) / rows,
    )
    told = desktop.locator(".hero .readout").inner_text()
    assert f"row {row + 1}, column {column + 1}: -" in told
    assert f"({share}% of the strongest, against it)" in told


def test_with_the_keyboard_alone(desktop):
    desktop.get_by_role("tab", name="Photo").focus()
    for _ in range(30):
        desktop.keyboard.press("Tab")
        if desktop.evaluate("document.activeElement.innerText") == "Use the sample photo":
            break
    desktop.keyboard.press("Enter")
    wait_for_maps(desktop, 2)
    seen = set()
    for _ in range(60):
        desktop.keyboard.press("Tab")
        seen.add(
            desktop.evaluate(
                "document.activeElement.dataset.control || document.activeElement.className || "
                "document.activeElement.innerText"
            )
        )
    assert {"opacity", "colormap", "threshold", "view", "map", "map large"} <= seen


def test_a_bundle_is_saved_and_opened(desktop, tmp_path):
    before = explain_sample(desktop)
    show_view(desktop, "Files")
    desktop.get_by_role("button", name="Make a bundle").click()
    with desktop.expect_download() as download:
        desktop.locator("a[download]").click()
    saved = Path(tmp_path) / "whence.zip"
    download.value.save_as(saved)
    desktop.evaluate("sessionStorage.clear()")
    desktop.goto(desktop.url.partition("#")[0])
    desktop.reload()
    show_view(desktop, "Files")
    # The first is for the photo.
    desktop.locator("input[type=file]").nth(1).set_input_files(saved)
    desktop.wait_for_selector("#panel-image .image-container img")
    show_view(desktop, "Explanation")
    assert wait_for_maps(desktop, 2) == before


def test_a_new_input_takes_away_what_was_said_of_the_old_one(desktop):
    explain_sample(desktop)
    show_view(desktop, "Heads")
    desktop.wait_for_selector(".heads[data-drawn]")
    press(desktop, "Use the sample photo")
    desktop.wait_for_selector(".heads", state="detached")
    assert desktop.locator(".heads").count() == 0


def test_a_full_queue_shows_a_message(desktop):
    full = {"status": 503, "json": {"detail": "Queue is full."}}
    desktop.route("**/queue/join*", lambda route: route.fulfill(**full))
    press(desktop, "Use the sample photo")
    message = desktop.wait_for_selector("text=currently busy")
    assert message.is_visible()


def test_mistakes_show_a_message(desktop):
    show_view(desktop, "Text")
    press(desktop, "Explain")
    desktop.wait_for_selector("text=Type a text first")
    assert desktop.get_by_text("Type a text first").count() == 1
    assert desktop.locator(".stage").get_by_text("Error").locator("visible=true").count() == 0
    desktop.get_by_role("textbox", name="Text").fill("a film")
    choose_methods(desktop, [])
    press(desktop, "Explain")
    desktop.wait_for_selector("text=between one and 6 methods")


def test_one_class_rather_than_another(desktop):
    explain_sample(desktop)
    plain = desktop.locator(".hero .map").get_attribute("data-scores")
    choose_other(desktop, "dog")
    press(desktop, "Explain")
    desktop.locator(".hero").get_by_text("cat rather than dog").wait_for()
    # What tells them apart, and each by itself.
    wait_for_maps(desktop, 3)
    names = desktop.locator(".cells figcaption > :first-child").all_inner_texts()
    assert names == ["cat rather than dog", "cat", "dog"]
    shown = desktop.locator(".cells .map").evaluate_all("all => all.map(m => m.dataset.scores)")
    assert shown[1] == plain != shown[0]
    assert "for the first more than" in desktop.locator(".hero .says").inner_text()
    choose_other(desktop, "cat")
    press(desktop, "Explain")
    desktop.wait_for_selector("text=choose two different ones")
    choose_other(desktop, "no other class")
    press(desktop, "Explain")
    desktop.get_by_text("cat rather than dog").first.wait_for(state="detached")


def choose_other(page, name):
    box = page.get_by_role("combobox", name="Rather than").locator("visible=true")
    box.click()
    box.fill(name)
    box.press("Enter")


def test_the_way_back_leads_to_the_tab_before(desktop):
    show_view(desktop, "Text")
    press(desktop, "Sample 1")
    desktop.wait_for_selector(".texts .words span")
    show_view(desktop, "Language model")
    desktop.go_back()
    desktop.locator(".texts .words span").first.wait_for(state="visible")
    assert "tab=text" in desktop.url
    desktop.go_back()
    desktop.get_by_role("button", name="Use the sample photo").wait_for(state="visible")


def test_an_address_holds_the_settings(desktop, address):
    desktop.goto(f"{address}#tab=text&methods=gae,tiba")
    desktop.reload()
    desktop.get_by_role("textbox", name="Text").wait_for(state="visible")
    desktop.wait_for_function(
        "document.querySelectorAll('#panel-text .cards :checked').length === 2"
    )
    chosen = desktop.locator("#panel-text .cards label:has(:checked) b").all_inner_texts()
    assert sorted(chosen) == ["gae", "tiba"]


def test_an_address_shows_nothing_of_its_own(desktop, address):
    attack = "%3Cimg src=x onerror='window.attacked=1'%3E"
    settings = "methods=gae,tiba&model=gone&classes=900"
    desktop.goto(f"{address}#tab=text&{settings}&html_result={attack}&input=more")
    desktop.reload()
    desktop.wait_for_function(
        "document.querySelectorAll('#panel-text .cards :checked').length === 2"
    )
    assert desktop.evaluate("window.attacked") is None
    assert desktop.get_by_role("textbox", name="Text").input_value() == ""
    assert desktop.locator(".result img").count() == 0
    # Nor a model that the page does not offer.
    assert desktop.locator("#panel-text .model input").input_value() == "sentiment (embedded)"
    press(desktop, "Sample 1")
    desktop.locator(".texts .words span").first.wait_for(state="visible")
