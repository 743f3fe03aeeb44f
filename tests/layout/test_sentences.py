from itertools import pairwise

import pytest

from whence.layout.sentences import find_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('"Yes!" said Tim. "No," she said.', ['"Yes!" said Tim.', '"No," she said.']),
        ('He said, "Stop." Then he left.', ['He said, "Stop."', "Then he left."]),
        ("A title\n\nA line\nAnother.", ["A title", "A line", "Another."]),
        ("Mr. Smith met Dr. J. Doe at 3.14. Fine.", ["Mr. Smith met Dr. J. Doe at 3.14.", "Fine."]),
        ("Wait... what? (Really.) Yes", ["Wait... what?", "(Really.)", "Yes"]),
        ("猫がいた。犬も\uff01はい", ["猫がいた。", "犬も\uff01", "はい"]),
        ("  spaces  ", ["spaces"]),
        ("...", ["..."]),
        ("", []),
        ("\n \n", []),
    ],
)
def test_sentences_end_where_readers_stop(text, expected):
    spans = find_sentences(text)
    assert [text[slice(*span)] for span in spans] == expected


def test_sentences_follow_each_other_and_hold_all_letters():
    text = 'Tim ran. "Oh!" he cried.\nSue, e.g. Mrs. Hill, saw it?! End'
    spans = find_sentences(text)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    held = {at for start, stop in spans for at in range(start, stop)}
    assert {at for at, letter in enumerate(text) if not letter.isspace()} <= held
