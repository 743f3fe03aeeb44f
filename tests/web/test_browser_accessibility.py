"""What axe-core finds on every tab, wide and narrow, light and dark, in a headless Chromium."""

import pytest

from tests.web.browser import find_violations, press

SIZES = {"wide": (1280, 720), "phone": (390, 844)}


@pytest.fixture(
    params=[
        ("wide", "light"),
        ("phone", "dark"),
        pytest.param(("wide", "dark"), marks=pytest.mark.slow),
        pytest.param(("phone", "light"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def screen(request, browser, address):
    """The page on a screen, just opened."""
    (width, height), scheme = SIZES[request.param[0]], request.param[1]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.get_by_role("tab", name="Photo").wait_for()
    yield page
    context.close()


def open_tab(page, name):
    page.get_by_role("tab", name=name, exact=True).locator("visible=true").click()


def test_violations_are_found(browser):
    page = browser.new_page()
    page.set_content("<main><img src='data:,'><button></button></main>")
    assert {one.split()[0] for one in find_violations(page)} >= {"image-alt", "button-name"}
    page.close()


def test_no_serious_violation_before_and_after_the_first_result(screen):
    assert find_violations(screen) == []
    press(screen, "Use the sample photo")
    screen.wait_for_selector(".map[data-drawn]")
    assert find_violations(screen) == []
    for tab, result in (("Text", ".whence.texts"), ("Language model", ".generation[data-drawn]")):
        open_tab(screen, tab)
        press(screen, "Sample 1")
        screen.wait_for_selector(result)
        assert find_violations(screen) == []


@pytest.mark.slow
def test_no_serious_violation_in_any_view(screen):
    press(screen, "Use the sample photo")
    screen.wait_for_selector(".map[data-drawn]")
    for view, result in (("Compare", ".whence .curves"), ("Heads", ".whence.heads"), ("Files", "")):
        open_tab(screen, view)
        if result:
            screen.wait_for_selector(f"{result}[data-drawn]")
        assert find_violations(screen) == []
    open_tab(screen, "Text")
    press(screen, "Explain")
    screen.get_by_text("Type a text first").first.wait_for()
    screen.wait_for_function(  # until it has faded in
        "getComputedStyle(document.querySelector('.toast-body')).opacity === '1'"
    )
    assert find_violations(screen) == []
