"""Words with their scores, and the spaces between them."""

import pytest

from tests.render.samples import explain_text
from whence.render.shades import LEVELS
from whence.render.words import find_spaces, list_words, to_label


def test_scores_are_relative_to_the_largest_word():
    words = list_words(explain_text(["good", "bad", "film"], [2.0, -4.0, 0.0]))
    assert [word.share for word in words] == [0.5, -1, 0]
    assert [word.level for word in words] == [LEVELS // 2, -LEVELS, 0]
    assert [word.score for word in words] == [2, -4, 0]


@pytest.mark.parametrize(
    "written",
    [
        "It 's|It's",
        "I don ' t know !|I don't know!",
        "he said ( once ) , [ twice ]|he said (once), [twice]",
        "the ' best ' film|the ' best ' film",
        "这 部 电 影 很 好 。|这部电影很好。",
        "这 is 好|这 is 好",
        "one|one",
    ],
)
def test_spaces_stand_as_people_write(written):
    split, whole = written.split("|")
    words = split.split()
    spaces = find_spaces(words)
    joined = "".join(w + " " * space for w, space in zip(words, spaces, strict=True))
    assert joined == whole


def test_a_line_break_can_be_seen():
    assert [to_label(text) for text in ("a", "\n", " \n\n", " ", "a\nb")] == [
        *("a", "↵", "↵", " ", "a b")
    ]
