import pytest
import torch

from whence import Explainer, Layout, WhenceError
from whence.layout import Tokens, find_tokens, sum_over_words

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "the",
    "film",
    "is",
    "un",
    "##watch",
    "##able",
    ".",
]


@pytest.fixture(scope="module")
def tokenizer():
    model = tokenizers.models.WordPiece({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]")
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.decoder = tokenizers.decoders.WordPiece()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)


@pytest.fixture(scope="module")
def model():
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
        id2label={0: "bad", 1: "good"},
    )
    return transformers.BertForSequenceClassification(config)


TEXTS = ["the film is unwatchable.", "the xyzzy film"]


def test_words_from_encodings(model, tokenizer):
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    result = Explainer(model).explain(batch, target="bad")
    words = result.words(0)
    assert [word for word, _ in words] == ["the", "film", "is", "unwatchable", "."]
    assert [word for word, _ in result.words(1)] == ["the", "[UNK]", "film"]
    start = result.tokens.strings[0].index("un")
    assert words[3][1] == pytest.approx(float(result.scores[0, start : start + 3].sum()))
    assert result.target_names == ["bad", "bad"]


@pytest.mark.parametrize("knows_tokenizer", [False, True])
def test_words_of_pairs_of_texts(model, tokenizer, knows_tokenizer):
    """Both texts have a first word; they are two words."""
    batch = tokenizer([TEXTS[0]], ["the film ."], return_tensors="pt")
    named = {"tokenizer": tokenizer} if knows_tokenizer else {}
    result = Explainer(model, **named).explain(batch)
    words = [*("the", "film", "is", "unwatchable", "."), *("the", "film", ".")]
    assert [word for word, _ in result.words()] == words
    assert result.matrix(by="word").columns == words
    last = result.tokens.strings[0].index("[SEP]") + 1
    assert result.words()[5][1] == pytest.approx(float(result.scores[0, last]))


def test_words_for_one_of_several_classes(model, tokenizer):
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    result = Explainer(model).explain(batch, classes=["good", "bad"])
    alone = Explainer(model).explain(batch, target="bad")
    for (word, score), (same, expected) in zip(
        result.words(1, target=1), alone.words(1), strict=True
    ):
        assert word == same
        assert score == pytest.approx(expected, rel=1e-3)
    assert result.target_names == [["good", "bad"]] * 2


def test_words_from_plain_ids(model, tokenizer):
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    with_tokenizer = Explainer(model, tokenizer=tokenizer).explain(batch)
    from_encodings = find_tokens(
        tokenizer(TEXTS, padding=True, return_tensors="pt"), batch["input_ids"]
    )
    assert with_tokenizer.tokens.strings == from_encodings.strings
    assert with_tokenizer.tokens.words == from_encodings.words
    with pytest.raises(WhenceError, match=r"has no words.*Explainer\(model, tokenizer=tokenizer\)"):
        Explainer(model).explain(batch).words()


def test_embeddings_have_no_words(model, tokenizer):
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    stated = Layout(special=(0, ids.shape[1] - 1))  # as the tokenizer says of ids
    explainer = Explainer(model, tokenizer=tokenizer, layout=stated)
    result = explainer.explain({"inputs_embeds": model.get_input_embeddings()(ids).detach()})
    assert result.tokens is None
    of_ids = Explainer(model, tokenizer=tokenizer).explain({"input_ids": ids})
    assert torch.allclose(result.scores, of_ids.scores, rtol=1e-4, atol=1e-9)


class Pieces:
    """A tokenizer of words in pieces, in the manner of its family."""

    unk_token = "<unk>"
    all_special_tokens = ["<s>", "</s>", "<unk>"]

    def __init__(self, tokens, to_string):
        self.tokens = tokens
        self.convert_tokens_to_string = to_string

    def convert_ids_to_tokens(self, ids):
        return [self.tokens[i] for i in ids]


@pytest.mark.parametrize(
    ("tokens", "to_string"),
    [
        (["<s>", "un", "watch", "able", "Ġfilm", "</s>"], lambda t: "".join(t).replace("Ġ", " ")),
        (["<s>", "▁un", "watch", "able", "▁film", "</s>"], lambda t: "".join(t).replace("▁", " ")),
        (
            ["<s>", "un", "watch", "able</w>", "film</w>", "</s>"],
            lambda t: "".join(t).replace("</w>", " "),
        ),
    ],
    ids=["byte-level BPE", "SentencePiece", "end of word"],
)
def test_words_of_other_tokenizers(tokens, to_string):
    ids = torch.arange(len(tokens))[None]
    found = find_tokens({}, ids, Pieces(tokens, to_string))
    words = sum_over_words(found.strings[0], found.words[0], [0.0, 1, 2, 3, 4, 0])
    assert words == [("unwatchable", 6), ("film", 4)]


def test_marks_inside_a_word_stay():
    assert sum_over_words(["a##b", "##c", "▁"], [0, 0, 1], [1, 1, 1]) == [("a##bc", 2), ("▁", 1)]


def test_a_masked_word_is_a_word():
    class Plain:
        unk_token, mask_token = "[UNK]", "[MASK]"
        all_special_tokens = ["[CLS]", "[SEP]", "[UNK]", "[MASK]"]
        names = ["[CLS]", "[MASK]", "film", "[UNK]", "[SEP]"]

        def convert_ids_to_tokens(self, ids):
            return [self.names[i] for i in ids]

        def convert_tokens_to_string(self, tokens):
            return " ".join(tokens)

    found = find_tokens({}, torch.arange(5)[None], Plain())
    assert found.words == [[None, 0, 1, 2, None]]


def join_bytes(tokens):
    """Text of byte-level tokens."""
    return "".join(tokens).replace("Ġ", " ")


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["un", "able", "Ġfilm"], [0, 0, 1]),
        (["film", ".", "is", "Ġit"], [0, 1, 2, 3]),  # punctuation is a word of its own
        (["film", ".", ".", "Ġ"], [0, 1, 2, 3]),
        (["<s>", "un", "</s>", "able", "<s>", "</s>", "s"], [None, 0, None, 1, None, None, 2]),
        (["Ġun", "<unk>", "Ġ<unk>"], [0, 0, 1]),
        (["</s>"], [None]),
        ([], []),
    ],
)
def test_words_are_numbered(tokens, words):
    found = find_tokens({}, torch.arange(len(tokens))[None], Pieces(tokens, join_bytes))
    assert (found.strings, found.words) == ([tokens], [words])


def test_samples_of_tokens_are_selected_and_follow_each_other():
    texts, offsets = ["a", "", "c"], [[(0, 1)], [None], [(0, 1)]]
    batch = Tokens([["a"], ["b"], ["c"]], [[0], [None], [0]], [["A"], [], ["C"]], texts, offsets)
    parts = [batch.select_samples(slice(0, 1)), batch.select_samples(slice(1, 3))]
    expected = Tokens([["b"], ["c"]], [[None], [0]], [[], ["C"]], texts[1:], offsets[1:])
    assert parts[1] == expected
    assert Tokens.concatenate(parts) == batch


def test_encodings_must_be_of_these_ids():
    class Encoding:
        ids, tokens, word_ids, sequence_ids = [7, 8], ("a", "b"), (None, 0), (None, 0)

    class Batch(dict):
        encodings = [Encoding(), Encoding()]

    pieces = Pieces(["x", "y"], join_bytes)
    ids = torch.zeros(2, 2, dtype=torch.long)
    found = find_tokens(Batch(), ids, pieces)
    assert (found.strings, found.words) == ([["a", "b"]] * 2, [[None, 0]] * 2)
    assert find_tokens(Batch(), ids) == Tokens([["a", "b"]] * 2, [[None, 0]] * 2)
    for other in (ids[:1], ids[:, :1]):
        found = find_tokens(Batch(), other, pieces)
        assert found.strings == [["x"] * other.shape[1]] * len(other)
    assert find_tokens(Batch(), ids[:1]) is None
    assert find_tokens({}, torch.zeros(1, 2, 3), pieces) is None
    assert find_tokens({}, ids) is None


def test_scores_of_words():
    tokens = ["<s>", "Ġun", "able", "##", "</w>", "Ġ##is", "n't", "</s>", "it</w>"]
    words = [None, 0, 0, 1, 2, 3, 3, None, 4]
    summed = sum_over_words(tokens, words, [9, 1, 2, 3, 4, 5, 7, 9, 6])
    assert summed == [("unable", 3), ("##", 3), ("</w>", 4), ("##isn't", 12), ("it", 6)]
    with pytest.raises(ValueError, match="zip"):
        sum_over_words(tokens, words, [1.0])
