import sys

import numpy as np
import pytest
import torch

from tests.generations import make_generation
from whence import Explanation, Generation, WhenceError


def test_prompt_and_output_are_parts_of_the_text():
    generation = make_generation()
    assert (generation.prompt(0), generation.output(0)) == ("Tim has a ball.", " Sue has it.")
    assert (generation.prompt(1), generation.output(1)) == ("A cat", " sat.\n")
    assert [one.name.strip() for one in generation.classes(1)] == ["sat", "."]
    assert [one.probability for one in generation.classes(1)] == [0.5, 0.5]
    generation.tokens = None
    with pytest.raises(WhenceError, match="The text is not known"):
        generation.output()


def test_a_table_by_tokens_holds_the_scores():
    generation = make_generation()
    matrix = generation.matrix(0)
    assert matrix.rows == ["S", "ue", "has", "it", ".", "</s>"]
    assert matrix.columns == [*("<s>", "Tim", "has", "a", "ball", "."), *matrix.rows]
    assert np.array_equal(matrix.values, generation.scores[0].double().numpy())
    assert matrix.probabilities == [0.5] * 6
    shorter = generation.matrix(1)
    assert shorter.values.shape == (2, 5)
    assert np.array_equal(shorter.values, generation.scores[1, :2, :5].double().numpy())


def test_a_table_by_words_adds_up_their_tokens():
    generation = make_generation()
    scores = generation.scores[0]
    matrix = generation.matrix(0, by="word")
    assert matrix.rows == ["Sue", "has", "it", "."]
    assert matrix.columns == ["Tim", "has", "a", "ball", ".", "Sue", "has", "it", "."]
    # "Sue" is two tokens, and has no share in itself.
    assert matrix.values[0].tolist() == [*(scores[0, 1:6] + scores[1, 1:6]).tolist(), 0, 0, 0, 0]
    of_sue = float(scores[2, 6] + scores[2, 7])
    assert matrix.values[1].tolist() == [*scores[2, 1:6].tolist(), of_sue, 0, 0, 0]
    assert matrix.probabilities == [0.25, 0.5, 0.5, 0.5]


def test_a_table_by_sentences():
    generation = make_generation()
    scores = generation.scores[0]
    matrix = generation.matrix(0, by="sentence")
    assert (matrix.rows, matrix.columns) == (["Sue has it."], ["Tim has a ball.", "Sue has it."])
    assert matrix.values.tolist() == [[float(scores[:5, 1:6].sum()), 0]]


@pytest.mark.parametrize("passage", ["Tim has", (0, 7)])
def test_a_table_of_passages_has_the_rest(passage):
    generation = make_generation()
    scores = generation.scores[0]
    matrix = generation.matrix(0, by={"who": passage})
    assert (matrix.rows, matrix.columns) == (["Sue", "has", "it", "."], ["who", "rest", "output"])
    rest = [0, 3, 4, 5]
    assert matrix.values[0].tolist() == [
        float(scores[:2, 1:3].sum()),
        float(scores[:2, rest].sum()),
        0,
    ]
    assert matrix.values[2].tolist() == [
        float(scores[3, 1:3].sum()),
        float(scores[3, rest].sum()),
        float(scores[3, 6:9].sum()),
    ]
    totals = matrix.totals
    assert totals["who"] == pytest.approx(float(scores[:5, 1:3].sum()))


def test_a_table_without_a_tokenizer_has_numbers():
    generation = make_generation()
    generation.tokens = None
    matrix = generation.matrix(1)
    assert (matrix.rows, matrix.columns) == (["#3", "#4"], ["#0", "#1", "#2", "#3", "#4"])


def test_wrong_samples_and_scores_are_refused():
    generation = make_generation()
    with pytest.raises(WhenceError, match="There is no sample 2"):
        generation.matrix(2)
    with pytest.raises(WhenceError, match="There is no sample -1"):
        generation.classes(-1)
    generation.scores[0, 0, 0] = torch.nan
    with pytest.raises(WhenceError, match="NaN"):
        generation.matrix(0)


def test_lines_of_pandas_hold_every_score():
    pandas = pytest.importorskip("pandas")
    generation = make_generation()
    table = generation.to_pandas(0, by="word")
    assert isinstance(table, pandas.DataFrame)
    matrix = generation.matrix(0, by="word")
    assert list(table["target"].unique()) == ["Sue", "has", "it", "."]
    wide = table.pivot(index="row", columns="column", values="score").to_numpy()
    assert np.array_equal(wide, matrix.values)


def test_samples_are_selected():
    generation = make_generation()
    one = generation[1]
    assert isinstance(one, Generation)
    assert len(one) == 1
    assert one.output() == generation.output(1)
    assert np.array_equal(one.matrix(by="word").values, generation.matrix(1, by="word").values)
    assert len(generation[:]) == 2
    assert generation[-1].prompt() == "A cat"
    assert [len(each) for each in generation] == [1, 1]
    with pytest.raises(IndexError, match="no sample 2"):
        generation[2]


def test_a_saved_generation_is_read_as_it_was(tmp_path):
    generation = make_generation()
    generation.save(tmp_path / "a.safetensors")
    again = Generation.load(tmp_path / "a.safetensors")
    assert torch.equal(again.scores, generation.scores)
    assert torch.equal(again.positions, generation.positions)
    assert torch.equal(again.prompt_lengths, generation.prompt_lengths)
    assert torch.equal(again.target, generation.target)
    assert again.tokens == generation.tokens
    assert again.target_names == generation.target_names
    assert type(Explanation.load(tmp_path / "a.safetensors")) is Generation
    Explanation(generation.scores, generation.target, generation.logits).save(
        tmp_path / "c.safetensors"
    )
    with pytest.raises(WhenceError, match="holds 'whence explanation 1'"):
        Generation.load(tmp_path / "c.safetensors")


def test_without_pandas_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(WhenceError, match="pandas is not installed here: pip install pandas"):
        make_generation().to_pandas()
