"""Reading a page as a browser's parser does, to see what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "img", "input", "link", "meta"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(one if isinstance(one, str) else one.text for one in self.children)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Those below, in order; class_ names one of the classes."""
        found = []
        for one in self.children:
            if isinstance(one, Element):
                if one.tag in (tag, "*") or tag == "*":
                    wanted = attributes.get("class_")
                    if wanted is None or wanted in one.attributes.get("class", "").split():
                        found.append(one)
                found += one.all(tag, **attributes)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(page: str) -> Element:
    """The page, if every element that it opens is closed in turn."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def items(root: Element) -> list[Element]:
    (found,) = (one for one in root.all("ul") if one.attributes.get("id") == "inputs")
    return [one for one in found.children if isinstance(one, Element)]
