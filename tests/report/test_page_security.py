"""The page loads nothing from outside, and hostile names stay text."""

import base64
import hashlib
import re

from tests.html_pages import list_entries, parse_html
from tests.saved import save_image_model

ALLOWED = {
    *"html head meta link title style body main h1 h2 h3 p section form label input select".split(),
    *"option div span output button ul li bdi figure figcaption b small img svg polyline".split(),
    *"table caption thead tbody tr th td pre script i".split(),
}


def test_nothing_is_asked_for_from_outside(here, make_page):
    (here / "photos" / "review.txt").write_text("see https://example.org/x.png and //example.org")
    page = make_page("photos", code=1)
    root = parse_html(page)
    for one in root.find_all("*"):
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            assert one.attributes.get(name, "data:").startswith("data:"), one
        for address in re.findall(r"url\((.*?)\)", one.attributes.get("style", "")):
            assert address.startswith("data:image/jpeg;base64,")
    (style,) = root.find_all("style")
    assert "url(" not in style.text
    assert "@import" not in style.text
    (script,) = root.find_all("script")
    assert not re.search(r"fetch|XMLHttp|import|WebSocket|http|innerHTML", script.text)


def test_only_our_script_may_run(here, make_page):
    root = parse_html(make_page("photos", code=1))
    (script,) = root.find_all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    policy = root.find_all("meta")[1].attributes["content"]
    assert policy.startswith("default-src 'none'; img-src data:")
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_classes_and_texts_stay_text(here, make_page, tmp_path):
    evil = "</script><script>alert(1)</script>"
    folder = save_image_model(tmp_path / "evil")
    config = (folder / "config.json").read_text().replace("crane", evil).replace("cat", evil + "2")
    (folder / "config.json").write_text(config)
    title = f"{evil}\x1b[31m"
    arguments = ("photos", "--model", folder, "--top", "3", "--title", title)
    root = parse_html(make_page(*arguments, code=1))
    assert {one.tag for one in root.find_all("*")} <= ALLOWED
    assert len(root.find_all("script")) == 1
    for one in root.find_all("*"):
        assert not [name for name in one.attributes if name.startswith("on")]
    assert root.find_all("h1")[0].text == f"{evil}\N{REPLACEMENT CHARACTER}[31m"
    names = {one.text for one in root.find_all("bdi", class_="class")}
    assert names >= {evil, evil + "2", "dog"}
    (here / "evil.csv").write_text(f'text\n"good {evil} film"\n')
    root = parse_html(make_page("evil.csv"))
    assert {one.tag for one in root.find_all("*")} <= ALLOWED
    assert len(root.find_all("script")) == 1
    assert "script" in list_entries(root)[0].find_all("p", class_="words")[0].text
