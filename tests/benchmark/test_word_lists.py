from whence.benchmark.word_lists import find_word_ids


def test_words_are_found_by_their_letters_too():
    # "ab cde": a token "Ġcde" whose offsets begin at its space, or after it
    offsets = [(0, 0), (0, 2), (2, 5), (5, 6), (0, 0)]
    assert find_word_ids([None, 0, 1, 1, None], offsets, ["ab", "cde"]) == [None, 0, 1, 1, None]
