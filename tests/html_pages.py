"""A parser of HTML pages for tests, which also checks that tags are closed in order."""

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

    def find_all(self, tag: str, class_: str | None = None) -> list[Element]:
        """The elements inside, in order; class_ names one of their classes."""
        elements = []
        for one in self.children:
            if isinstance(one, Element):
                classes = one.attributes.get("class", "").split()
                if tag in (one.tag, "*") and (class_ is None or class_ in classes):
                    elements.append(one)
                elements += one.find_all(tag, class_)
        return elements


class _Parser(HTMLParser):
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


def parse_html(page: str) -> Element:
    """The page as a tree of elements."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert parser.open == [parser.root]
    return parser.root


def list_entries(root: Element) -> list[Element]:
    """The list items of a report, one for each input."""
    (entries,) = (one for one in root.find_all("ul") if one.attributes.get("id") == "inputs")
    return [one for one in entries.children if isinstance(one, Element)]
