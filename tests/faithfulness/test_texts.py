import dataclasses

import pytest
import torch
from transformers import BertForSequenceClassification

from tests.faithfulness.helpers import TEXT, explain_by
from whence.faithfulness import measure


@pytest.mark.parametrize("order", ["most", "least"])
def test_text_curves_are_those_of_a_loop(bert, text_model, order):
    """Words of highest summed scores are taken out of the list, which is tokenised again."""
    prepared, explanations = explain_by(bert, TEXT, "gae", target="positive")
    curves = measure(bert, prepared, explanations, draws=0).get("gae")
    model = BertForSequenceClassification.from_pretrained(text_model).float().eval()
    words = explanations["gae"].words()
    sign = -1 if order == "most" else 1
    ranked = sorted(range(9), key=lambda at: (sign * words[at][1], at))
    values = []
    for tenths in range(10):
        gone = set(ranked[: 9 * tenths // 10])
        left = " ".join(word for at, (word, _) in enumerate(words) if at not in gone)
        assert curves.get_input(tenths, order) == left
        assert curves.get_mask(tenths, order).tolist() == [at in gone for at in range(9)]
        with torch.no_grad():
            logits = model(**bert.tokenizer(left, return_tensors="pt")).logits[0]
        values.append(float(logits.double().softmax(0)[1]))
    assert curves.get_curve(order) == pytest.approx(values, abs=1e-6)


def test_words_beyond_the_models_length_do_not_move_in(bert):
    text = " ".join(["good", "film"] * 60) + " awful"
    prepared, explanations = explain_by(bert, text, "gae")
    found = measure(bert, prepared, explanations, draws=1)
    curves = found.get("gae")
    assert len(found.words) == 62  # 64 positions, two of them for special tokens
    assert curves.get_input(0) == " ".join(["good", "film"] * 31)
    for order in ("most", "least", "random"):
        assert len(curves.get_input(9, order).split()) == 62 - 55


def test_pieces_of_words_go_together_and_neighbours_do_not_join(bert):
    prepared, explanations = explain_by(bert, "wonderfully good,film\n\nis awful", "gae")
    found = measure(bert, prepared, explanations, draws=0)
    assert found.words == ("wonderfully", "good", ",", "film", "is", "awful")
    curves = dataclasses.replace(
        found.get("gae"), _ranks={"most": torch.tensor([4, 5, 0, 3, 1, 2])}
    )
    assert curves.get_input(0) == "wonderfully good,film\n\nis awful"
    assert curves.get_input(2) == "wonderfully good film\n\nis awful"
    assert curves.get_input(5) == "wonderfully good film"
    assert curves.get_input(9) == "good"


def test_a_text_that_spells_special_tokens(bert):
    prepared, explanations = explain_by(bert, "good [SEP]", "gae")
    found = measure(bert, prepared, explanations, draws=1)
    assert found.words == ("good", "[SEP]")
    assert {found.get("gae").get_input(5, order) for order in ("most", "least")} == {
        "good",
        "[SEP]",
    }
