import pytest

from tests.language import STORY, make_llama_tokenizer
from whence import WhenceError
from whence.layout import Tokens, find_tokens
from whence.layout.grouping import find_passages, group_tokens


@pytest.fixture(scope="module")
def tokens():
    tokenizer = make_llama_tokenizer()
    batch = tokenizer([STORY], return_tensors="pt")
    return find_tokens({}, batch["input_ids"], tokenizer)


def group(tokens, by, *cuts):
    length = len(tokens.strings[0])
    return group_tokens(tokens, 0, by, (*cuts, length))


def test_each_token_is_a_group(tokens):
    groups = group(tokens, "token")
    assert [one.tokens for one in groups] == [(n,) for n in range(len(tokens.strings[0]))]
    assert groups[0].name == "<s>"
    assert groups[0].span is None
    assert "".join(one.name.strip() for one in groups[1:]) == "".join(STORY.split())


def test_words_hold_their_tokens_and_no_special_ones(tokens):
    groups = group(tokens, "word")
    assert [one.name for one in groups][:6] == ["Tim", "had", "a", "red", "ball", "."]
    assert [one.tokens for one in groups] == [
        tuple(at for at, word in enumerate(tokens.words[0]) if word == n)
        for n in range(len(groups))
    ]
    for one in groups:
        assert STORY[slice(*one.span)] == one.name


def test_sentences_hold_their_words(tokens):
    groups = group(tokens, "sentence")
    assert [one.name for one in groups] == [
        "Tim had a red ball.",
        "Tim gave the ball to Sue.",
        '"Thank you!" said Sue.',
        "Tim didn't mind.",
    ]
    held = [at for one in groups for at in one.tokens]
    assert held == list(range(1, len(tokens.strings[0])))


@pytest.mark.parametrize("by", ["word", "sentence"])
def test_a_cut_ends_a_group(tokens, by):
    whole = group(tokens, by)
    parted = next(one for one in whole if len(one.tokens) > 1)
    cut = parted.tokens[1]
    groups = group(tokens, by, cut)
    assert len(groups) == len(whole) + 1
    assert [at for one in groups for at in one.tokens] == [at for one in whole for at in one.tokens]
    assert all(max(one.tokens) < cut or min(one.tokens) >= cut for one in groups)


def test_passages_by_text_or_characters(tokens):
    start = STORY.index("Tim gave")
    passages = {"ball": "Tim had a  red\nball.", "gift": (start, start + len("Tim gave the ball"))}
    ball, gift = group(tokens, passages)
    assert (ball.name, gift.name) == ("ball", "gift")
    words = group(tokens, "word")
    assert ball.tokens == tuple(at for word in words[:6] for at in word.tokens)
    assert gift.tokens == tuple(at for word in words[6:10] for at in word.tokens)
    listed = group(tokens, ["Tim had a red ball."])
    assert [(one.name, one.tokens) for one in listed] == [("Tim had a red ball.", ball.tokens)]


def test_a_passage_stands_before_the_first_cut(tokens):
    with pytest.raises(WhenceError, match="'Sue' stands 2 times in the text"):
        group(tokens, ["Sue"])
    words = group(tokens, "word")
    second = [word for word in words if word.name == "Sue"][1]
    (found,) = group(tokens, ["Sue"], second.tokens[0])
    assert found.tokens == next(word for word in words if word.name == "Sue").tokens


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        ({"a": "nowhere"}, "'a' is not in the text"),
        ({"a": "ball"}, "'a' stands 2 times in the text. Give its first character"),
        ({"a": " "}, "'a' is empty"),
        ({"a": (3, 3)}, "'a' is from character 3 to 3, and the text has"),
        ({"a": (0, 10**6)}, "from character 0 to 1000000"),
        ({}, "There are no passages"),
    ],
)
def test_wrong_passages_are_refused(passages, message):
    with pytest.raises(WhenceError, match=message):
        find_passages(passages, STORY)


def test_passages_may_be_spelled_in_another_case():
    assert find_passages(["TIM HAD"], STORY) == {"TIM HAD": (0, 7)}


def test_what_needs_the_text_says_so(tokens):
    plain = Tokens(tokens.strings, tokens.words)
    assert [one.tokens for one in group(plain, "word")] == [
        one.tokens for one in group(tokens, "word")
    ]
    for by in ("sentence", {"a": "Tim"}):
        with pytest.raises(WhenceError, match=r"need the text.*Explainer\(model, tokenizer="):
            group(plain, by)
    with pytest.raises(WhenceError, match="by is one of token, word, sentence"):
        group(tokens, "letter")
