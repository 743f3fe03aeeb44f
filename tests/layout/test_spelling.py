"""Where tokens stand in a text, and which of them are a word, for tokenizers of several kinds."""

import pytest
import torch

from tests.language import make_gpt2_tokenizer, make_llama_tokenizer
from whence.layout import find_tokens
from whence.layout.spelling import number_words, spell_tokens

TEXT = 'Once upon a time, "Tim" said: don\'t!\nHe saw naïve 😀 balls.'
WORDS = [
    *("Once", "upon", "a", "time", ",", '"', "Tim", '"', "said", ":", "don't", "!"),
    *("\n", "He", "saw", "naïve", "😀", "balls", "."),
]
TOKENIZERS = {"Llama": make_llama_tokenizer, "GPT-2": make_gpt2_tokenizer}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_stand_where_the_tokenizer_says(name):
    tokenizer = TOKENIZERS[name]()
    encoding = tokenizer(TEXT).encodings[0]
    text, offsets = spell_tokens(encoding.tokens, tokenizer)
    assert text == TEXT
    assert len(offsets) == len(encoding.tokens)
    for token, offset, expected in zip(encoding.tokens, offsets, encoding.offsets, strict=True):
        if token == "<s>":
            assert offset is None
        else:
            # A space before the first word, which a tokenizer puts there, is not in the text.
            assert text[slice(*offset)].strip() in ("", TEXT[slice(*expected)].strip())


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("is_plain", [True, False], ids=["ids", "encodings"])
def test_words_are_those_of_people(name, is_plain):
    tokenizer = TOKENIZERS[name]()
    batch = tokenizer([TEXT], return_tensors="pt")
    found = find_tokens(dict(batch) if is_plain else batch, batch["input_ids"], tokenizer)
    if name == "GPT-2" and not is_plain:  # its own words, which keep "'t" together
        assert [w for w in found.texts[0] if "'" in w] == ["'t"]
    else:
        assert found.texts[0] == WORDS
    assert found.contents == [TEXT]


def test_words_of_a_tokenizer_that_splits_nothing_are_split_by_their_marks():
    tokenizer = make_llama_tokenizer()
    batch = tokenizer([TEXT], return_tensors="pt")
    assert set(batch.encodings[0].word_ids) == {None, 0}
    alone = find_tokens(batch, batch["input_ids"])
    known = find_tokens(batch, batch["input_ids"], tokenizer)
    assert alone.words == known.words
    assert not alone.contents


def test_special_tokens_stand_nowhere_and_part_what_is_around_them():
    tokenizer = make_llama_tokenizer()
    tokens = ["<s>", "▁Tim", "</s>", "</s>", "▁Sue", "</s>"]
    text, offsets = spell_tokens(tokens, tokenizer)
    assert text == "Tim\nSue"
    assert offsets == [None, (0, 3), None, None, (4, 7), None]
    assert number_words(text, offsets) == [None, 0, None, None, 1, None]


def test_bytes_of_one_character_stand_where_it_does():
    tokenizer = make_llama_tokenizer()
    bytes_ = [f"<0x{byte:02X}>" for byte in "😀".encode()]
    text, offsets = spell_tokens(["▁a", *bytes_, "t"], tokenizer)
    assert text == "a😀t"
    assert offsets == [(0, 1), *[(1, 2)] * 4, (2, 3)]
    assert number_words(text, offsets) == [0, 1, 1, 1, 1, 2]
    # A text may end within a character, and go on after bytes that are none.
    text, offsets = spell_tokens(["▁a", *bytes_[:2]], tokenizer)
    assert text.startswith("a")
    assert [offset is None for offset in offsets] == [False] * 3
    text, offsets = spell_tokens(["▁a", *bytes_[:2] * 3, "t"], tokenizer)
    assert text.replace("\ufffd", "") == "at"
    assert text[slice(*offsets[-1])].endswith("t")


@pytest.mark.parametrize(
    ("text", "offsets", "words"),
    [
        ("a  b", [(0, 1), (1, 2), (2, 4)], [0, 1, 1]),  # spaces belong to the word after them
        ("a \n\nb", [(0, 1), (1, 4), (4, 5)], [0, 1, 2]),
        ("ab cd", [(0, 1), (1, 3), (3, 5)], [0, 0, 1]),  # a space at the end of a token
        ("ab", [(0, 1), (1, 1), (1, 2)], [0, 1, 1]),  # a token that adds nothing
        ("...", [(0, 1), (1, 3)], [0, 1]),
    ],
)
def test_words_by_spaces(text, offsets, words):
    assert number_words(text, offsets) == words


def test_a_long_text_is_spelled_as_a_whole_is():
    tokenizer = make_gpt2_tokenizer()
    ids = torch.randint(1, len(tokenizer), (400,), generator=torch.Generator().manual_seed(0))
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    text, offsets = spell_tokens(tokens, tokenizer)
    assert all(offset is not None for offset in offsets)
    whole = tokenizer.convert_tokens_to_string(tokens).removeprefix(" ")
    assert text.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_a_space_that_a_tokenizer_puts_first_is_no_part_of_the_text():
    tokenizer = make_gpt2_tokenizer()
    text, offsets = spell_tokens(["ĠTim", "Ġhad"], tokenizer)
    assert text == "Tim had"
    assert offsets == [(0, 3), (3, 7)]
