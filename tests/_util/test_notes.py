"""Notes of many inputs, said once each with a count."""

from whence._util.notes import find_repeated, merge_notes

CUT = "cut at 64 of {} tokens"
SEEN = "the model saw only the middle {}% of the photo"


def test_equal_notes_have_a_count():
    notes = [[SEEN.format(56)]] * 12
    assert merge_notes(notes, "photo") == [f"{SEEN.format(56)} (12 photos)"]
    assert merge_notes([["a"], [], ["a"]], "text") == ["a (2 of 3 texts)"]
    assert merge_notes([["a"], ["a"]], "text") == ["a (both texts)"]
    assert merge_notes([["a"]], "text") == ["a (1 text)"]
    assert merge_notes([[], []], "text") == merge_notes([], "text") == []


def test_numbers_that_differ_become_a_range():
    notes = [[SEEN.format(share)] for share in (60, 9, 56.5)]
    assert merge_notes(notes, "photo") == [f"{SEEN.format('9 to 60')} (3 photos)"]
    notes = [[CUT.format(100), "odd"], [CUT.format(70)], []]
    assert merge_notes(notes, "text") == [
        f"{CUT.format('70 to 100')} (2 of 3 texts)",
        "odd (1 of 3 texts)",
    ]


def test_notes_of_several_inputs_are_found():
    notes = [[CUT.format(100), "odd"], [CUT.format(70)], ["odd 2", "odd 3"]]
    assert find_repeated(notes) == {CUT.format(100), CUT.format(70)}
