import pytest

from whence import WhenceError
from whence._util.text import data_uri, first_line, format_probability, percent, to_printable


@pytest.mark.parametrize(
    ("probability", "text"),
    [(None, ""), (0.0, "<0.1%"), (0.0012, "0.1%"), (0.984, "98.4%"), (0.9999, ">99.9%")],
)
def test_probabilities_are_never_rounded_to_certainty(probability, text):
    assert format_probability(probability) == text
    assert percent(0.12345, digits=2) == "12.35%"


def test_control_characters_become_visible():
    assert to_printable("a\nb\tc\x1b[2J\x00\ud800") == "a b c\ufffd[2J\ufffd\ufffd"
    assert to_printable("猫 😀 עברית") == "猫 😀 עברית"


def test_first_lines_and_data_uris():
    assert first_line(WhenceError("No such file.\nMore.")) == "No such file"
    assert data_uri(b"abc", "text/plain") == "data:text/plain;base64,YWJj"
