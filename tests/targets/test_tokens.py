"""Targets of models with one output for each token."""

import pytest
import torch
from torch import Tensor

from tests.targets.models import (
    build_decoder,
    build_encoder,
    make_batch,
    multiply_words,
    select_text,
)
from whence import Explainer, WhenceError, targets
from whence.targets.base import TargetContext, TokenSequence
from whence.targets.scalars import Contrast, Readout, ReadScalars

METHOD = {"method": "input_x_gradient"}
CLASSES = ("whence", "tiba", "gae", "attnlrp", "rollout", "input_x_gradient", "occlusion")


@pytest.fixture(scope="module")
def decoder():
    return build_decoder()


class Letters:
    """A tokenizer whose tokens are numbered characters."""

    unk_token = "?"
    all_special_tokens = ()
    _letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"

    def get_vocab(self):
        return {letter: number for number, letter in enumerate(self._letters)}

    def encode(self, text, *, add_special_tokens=True):
        assert not add_special_tokens
        return [self._letters.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(self._letters[one] for one in ids)

    def convert_ids_to_tokens(self, ids):
        return [self._letters[one] for one in ids]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)


def assert_words(result, batch, sample: int, expected: Tensor, target: int | None = None) -> None:
    """Scores of real tokens are these, and padding has none."""
    scores = result.scores[sample] if target is None else result.scores[sample, target]
    real = batch["attention_mask"][sample].bool()
    assert torch.allclose(scores[real], expected, rtol=1e-6, atol=1e-9)
    assert not scores[~real].any()


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(("position", "at"), [(-1, (6, 3)), (1, (1, 1)), ([2, -2], (2, 2))])
def test_a_token_at_a_position_of_real_tokens(decoder, padding, position, at):
    batch = make_batch(padding)
    result = Explainer(decoder).explain(batch, targets.token(position, 7), **METHOD)
    for sample, row in enumerate(at):
        text = select_text(batch, sample)
        expected = multiply_words(decoder, text, lambda r, row=row: r.logits[0, row, 7])
        assert_words(result, batch, sample, expected)
        logits = decoder(**text).logits[0, row]
        assert torch.allclose(result.logits[sample], logits)
        assert torch.allclose(result.values[sample], logits[7])
        assert torch.allclose(result.probabilities[sample].double(), logits.softmax(0)[7])
    assert result.target.tolist() == [7, 7]


def test_the_model_chooses_the_token(decoder):
    batch = make_batch()
    result = Explainer(decoder).explain(batch, **METHOD)
    highest = [int(decoder(**select_text(batch, n)).logits[0, -1].argmax()) for n in (0, 1)]
    assert result.target.tolist() == highest
    top = Explainer(decoder).explain(batch, classes=3, **METHOD)
    assert top.target[:, 0].tolist() == highest
    assert torch.allclose(top.scores[:, 0], result.scores)
    assert top.logits.shape == (2, 3, 40)


def test_tokens_of_a_decoder_by_id_or_text(decoder):
    batch = make_batch()
    explainer = Explainer(decoder, tokenizer=Letters())
    result = explainer.explain(batch, "c", **METHOD)
    assert result.target.tolist() == [2, 2]
    assert result.target_names == ["c", "c"]
    each = explainer.explain(batch, ["c", 3], **METHOD)
    assert each.target_names == ["c", "d"]
    assert torch.allclose(each.scores[0], result.scores[0])
    both = explainer.explain(batch, classes=["c", targets.token(0, "d")], **METHOD)
    assert both.target_names == [["c", "d"]] * 2
    assert torch.allclose(both.scores[:, 0], result.scores)
    rows = explainer.explain(batch, classes=[["c", "d"], ["e", "f"]], **METHOD)
    assert rows.target.tolist() == [[2, 3], [4, 5]]
    listed = explainer.explain(batch, [targets.token(0, "d"), targets.token(1, "e")], **METHOD)
    assert listed.target_names == ["d", "e"]
    assert torch.allclose(listed.scores[0], both.scores[0, 1])


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(("start", "stop"), [(1, 4), (-2, None), (2, -1)])
def test_the_log_probability_of_a_span(decoder, padding, start, stop):
    batch = make_batch(padding)
    result = Explainer(decoder).explain(batch, targets.span(start, stop), **METHOD)

    def read(returned, ids):
        chances = returned.logits[0].log_softmax(-1)
        span = range(*slice(start, stop).indices(len(ids)))
        return sum(chances[at - 1, ids[at]] for at in span)

    for sample in range(len(batch["input_ids"])):
        text = select_text(batch, sample)
        ids = text["input_ids"][0].tolist()
        expected = multiply_words(decoder, text, lambda r, ids=ids: read(r, ids))
        assert_words(result, batch, sample, expected)
        assert torch.allclose(result.values[sample], read(decoder(**text), ids))
    assert torch.allclose(result.probabilities, result.values.exp())


@pytest.mark.parametrize("method", CLASSES)
def test_target_less_against(decoder, method):
    """Two targets share one forward pass; a contrast is one scalar, and not two explanations."""
    batch = make_batch()
    explainer = Explainer(decoder)
    result = explainer.explain(batch, 7, against=targets.token(-1, 9), method=method)
    assert torch.allclose(
        result.values,
        torch.stack([r[7] - r[9] for r in explainer.explain(batch, 7, **METHOD).logits]),
    )
    own = explainer.explain(
        batch,
        lambda outputs, inputs: _read_last(outputs, inputs, 7) - _read_last(outputs, inputs, 9),
        method=method,
    )
    assert torch.allclose(result.scores, own.scores, rtol=1e-6, atol=1e-9)
    if method in ("attnlrp", "input_x_gradient", "occlusion"):  # linear in the target
        a, b = (explainer.explain(batch, one, method=method).scores for one in (7, 9))
        assert torch.allclose(result.scores, a - b, rtol=1e-6, atol=1e-9)


def _read_last(outputs, inputs, token: int) -> Tensor:
    last = inputs["attention_mask"].sum(1) - 1
    return outputs.logits[torch.arange(len(last)), last, token]


@pytest.mark.parametrize("method", CLASSES)
def test_several_targets_are_those_alone(decoder, method):
    batch = make_batch()
    explainer = Explainer(decoder)
    several = [targets.token(2, 5), targets.span(1, 3), targets.token(-1), targets.token(0, 3)]
    together = explainer.explain(batch, classes=several, method=method)
    assert together.scores.shape == (2, 4, 7)
    for number, one in enumerate(several):
        alone = explainer.explain(batch, one, method=method)
        assert torch.allclose(together.scores[:, number], alone.scores, rtol=1e-6, atol=1e-9)
        assert torch.allclose(together.values[:, number], alone.values)


def test_chunks_of_a_batch_have_their_own_positions(decoder):
    batch = make_batch()
    explainer = Explainer(decoder)
    asked = {"target": targets.token([2, 1], [5, 6]), "against": targets.token([0, 1], 7)}
    whole = explainer.explain(batch, **asked, method="gae")
    chunks = explainer.explain(batch, **asked, method="gae", memory=1e-6)
    assert torch.allclose(whole.scores, chunks.scores)
    assert chunks.target.tolist() == [5, 6]
    assert torch.allclose(whole.values, chunks.values)


@pytest.mark.parametrize("task", ["ForMaskedLM", "ForTokenClassification"])
def test_models_that_speak_of_the_token_itself(task):
    model = build_encoder(task, **({"num_labels": 3} if "Token" in task else {}))
    batch = make_batch()
    result = Explainer(model).explain(batch, targets.token(2, 1), **METHOD)
    expected = multiply_words(model, select_text(batch, 1), lambda r: r.logits[0, 2, 1])
    assert_words(result, batch, 1, expected)
    with pytest.raises(WhenceError, match=r"logits of shape|Logits of shape .*targets\.token"):
        Explainer(model).explain(batch, **METHOD)
    with pytest.raises(WhenceError, match="A span is a target of language models"):
        Explainer(model).explain(batch, targets.span(1, 2), **METHOD)


def test_labels_of_a_tagger_by_name():
    model = build_encoder("ForTokenClassification", id2label={0: "O", 1: "PER", 2: "LOC"})
    result = Explainer(model).explain(make_batch(), targets.token(2, "LOC"), **METHOD)
    assert result.target_names == ["LOC", "LOC"]
    with pytest.raises(WhenceError, match=r"no class 'ORG'\. The model has 'O', 'PER', 'LOC'"):
        Explainer(model).explain(make_batch(), targets.token(2, "ORG"), **METHOD)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (targets.token(4), "Position 4 does not exist: text 1 of the batch has 4 tokens, 0 to 3"),
        (targets.token(-8), "Position -8 does not exist: text 0"),
        (targets.token([0, 1, 2]), "3 positions were given for 2"),
        (targets.token(0, [1, 2, 3]), "3 tokens were given for 2"),
        (targets.token(0, 40), "Class 40 does not exist: the model has 40"),
        (targets.token(0, "ab"), r"'ab' is 2 tokens of this model: 'a', 'b'"),
        (targets.token(0, ""), "A token is some text"),
        (targets.span(0, 2), "The span from 0 to 2 does not exist"),
        (targets.span(2, 2), "The span from 2 to 2 does not exist"),
        (targets.span(2, 9), "The span from 2 to 9 does not exist: text 0"),
        (targets.token(1, 3, prompt=3), "prompt=3 is no number of tokens .*: that is 1 to 2"),
        (targets.token(1, 3, prompt=0), "prompt=0 is no number of tokens"),
        (targets.token(1, 3, prompt=[1]), "1 prompts were given for 2 sample"),
        (targets.span(2, 3, prompt=3), "prompt=3 is no number of tokens .*: that is 1 to 2"),
    ],
)
def test_what_a_text_does_not_have(decoder, target, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(decoder, tokenizer=Letters()).explain(make_batch(), target, **METHOD)


def test_texts_of_tokens_need_a_tokenizer(decoder):
    with pytest.raises(WhenceError, match="tokenizer=tokenizer"):
        Explainer(decoder).explain(make_batch(), "a", **METHOD)


@pytest.mark.parametrize("wrong", ["x", 1.5, True, [1.5]])
def test_positions_are_whole_numbers(wrong):
    with pytest.raises(WhenceError, match="position is a whole number"):
        targets.token(wrong)
    with pytest.raises(WhenceError, match=r"start is a whole number|one start"):
        targets.span(wrong, 3)
    with pytest.raises(WhenceError, match=r"prompt is a whole number|one prompt"):
        targets.span(2, 3, prompt=wrong)


def test_where_a_prompt_ends_changes_no_scalar(decoder):
    explainer = Explainer(decoder)
    for plain, ending in (
        (targets.token(2, 5), targets.token(2, 5, prompt=[1, 3])),
        (targets.span(2, 3), targets.span(2, 3, prompt=1)),
    ):
        results = [explainer.explain(make_batch(), one, **METHOD) for one in (plain, ending)]
        assert torch.equal(results[0].scores, results[1].scores)
        assert results[0].target_names == results[1].target_names


def test_the_same_token_twice(decoder):
    with pytest.raises(WhenceError, match="both are '7'"):
        Explainer(decoder).explain(make_batch(), 7, against=7, **METHOD)


def test_a_classifier_has_no_positions():
    model = build_encoder("ForSequenceClassification")
    with pytest.raises(WhenceError, match=r"Tokens and spans are targets of models.*\(2, 2\)"):
        Explainer(model).explain(make_batch(), targets.token(), **METHOD)


def test_names_of_contrasts_have_no_spaces_around():
    assert targets.join_names(" cat", " dog") == "cat rather than dog"
    assert targets.join_names(" cat") == " cat"
    assert targets.join_names("\n", " ") == "\n rather than  "


# Centered seeds -----------------------------------------------------------------------------------


def resolve(decoder, batch, *asked, against=None):
    """Scalars of a model's output, with what is read of it."""
    context = TargetContext(
        batch=len(batch["input_ids"]),
        find_logits=lambda returned: returned.logits,
        select_inputs=lambda samples: {name: value[samples] for name, value in batch.items()},
        run=lambda inputs: decoder(**inputs),
        sequences=[TokenSequence(batch["attention_mask"].bool(), batch["input_ids"])],
        generates=True,
    )
    wanted = [*asked, against] if against is not None else list(asked)
    readout = Readout(wanted, context)
    outputs = readout(decoder(**batch)).detach()
    scalars = [of[0] for of in readout.resolve(outputs)]
    if against is not None:
        return ReadScalars(readout, [Contrast(*scalars)]), outputs
    return ReadScalars(readout, [Contrast(one) for one in scalars]), outputs


@pytest.mark.parametrize("by_rules", [False, True])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_centered_seeds_of_tokens(decoder, padding, by_rules):
    """Of a token less the mean of the vocabulary there; a log-probability is centred by itself."""
    batch = make_batch(padding)
    asked = targets.token(-1, 7), targets.token(2, [3, 5]), targets.span(1, 3)
    scalars, outputs = resolve(decoder, batch, *asked)
    found = scalars.make_seeds(outputs, by_rules=by_rules, centered=True)
    plain = scalars.make_seeds(outputs, by_rules=by_rules)
    rows = found.unflatten(2, (-1, 40))
    for number, ids in ((0, (7, 7)), (1, (3, 5))):
        for sample, token_id in enumerate(ids):
            read = plain.unflatten(2, (-1, 40))[number, sample].any(-1)
            assert read.sum() == 1
            expected = torch.eye(40, dtype=torch.float64)[token_id] - 1 / 40
            assert torch.allclose(rows[number, sample, read], expected)
            assert not rows[number, sample, ~read].any()
    assert torch.equal(found[2], plain[2])
    assert torch.allclose(rows.sum(-1), torch.zeros(()).double(), atol=1e-12)


def test_a_token_against_another_at_its_place_has_the_plain_seeds(decoder):
    scalars, outputs = resolve(
        decoder, make_batch(), targets.token(-1, 7), against=targets.token(-1, 9)
    )
    found = scalars.make_seeds(outputs, centered=True)
    assert torch.allclose(found, scalars.make_seeds(outputs), atol=1e-12)
    assert found.any()
