"""Requests and results: rows of them, and what they tell of classes and tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.helpers import make_request
from tests.tracing.attention_model import make_inputs
from tests.zoo import CASES, build_model
from whence import WhenceError
from whence.engine.request import Result, Subject, check_memory
from whence.layout import Layout, Tokens
from whence.targets import AskedClasses


@pytest.mark.parametrize(
    ("target", "classes", "count"),
    [
        (None, None, 1),
        (2, None, None),
        ([0, 1], None, None),
        (None, 3, 3),
        (None, np.int64(3), 3),
        (None, torch.tensor(3), 3),
        (None, [0, 1], None),
        (None, torch.tensor([0]), None),
        (None, "cat", None),
        (None, True, None),
    ],
)
def test_how_many_of_the_highest_classes_are_asked_for(target, classes, count):
    assert make_request(target=target, classes=classes).asked.top_count == count


def test_rows_of_a_request_have_their_own_targets():
    x = make_inputs()
    request = make_request(x, target=[3, 1]).make_cuttable()
    assert request.batch == 2
    assert request.make_cuttable() is request
    assert request.select_rows(slice(0, 2)) is request
    second = request.select_rows(slice(1, 2))
    assert (second.batch, list(second.asked.target)) == (1, [1])
    assert torch.equal(second.arguments.main, x[1:])
    same = replace(request, asked=AskedClasses(3, against=[4, 5]))
    assert same.select_rows(slice(1, 2)).asked == AskedClasses(3, against=[5])
    several = replace(request, asked=AskedClasses(classes=[[0, 1], [2, 3]]))
    assert several.select_rows(slice(1, 2)).asked.classes == [[2, 3]]
    with pytest.raises(WhenceError, match="3 targets were given for 2"):
        replace(request, asked=AskedClasses([1, 2, 3])).select_rows(slice(1, 2))


def test_tokens_of_a_text_go_with_their_rows(text_model):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_model)
    model = build_model(CASES["Bert-sdpa"])
    batch = tokenizer(["a good film", "bad"], padding=True, return_tensors="pt")
    request = make_request(batch, model).with_tokens()
    assert request.special.int().tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 1, 1]]
    second = request.make_cuttable().select_rows(slice(1, 2))
    assert second.tokens.strings == request.tokens.strings[1:]
    assert second.special.int().tolist() == [[1, 0, 1, 1, 1]]
    assert make_request(dict(batch), model).with_tokens().special is None


def test_images_have_no_tokens():
    case = CASES["ViTForImageClassification-sdpa"]
    request = make_request(case.inputs(), build_model(case))
    assert request.with_tokens() is request


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
def test_several_labels_can_hold_at_once(kind):
    model = build_model(CASES["ViTForImageClassification-sdpa"])
    model.config.problem_type = kind
    subject = Subject(torch.nn.DataParallel(model), {}, None, Layout(), None)
    assert subject.multi_label is (kind == "multi_label_classification")


@pytest.mark.parametrize("memory", [0, -1.0, float("nan"), float("inf"), "much", True])
def test_what_is_no_amount_of_memory_is_refused(memory):
    with pytest.raises(WhenceError, match="memory is a number of gibibytes above 0, such as"):
        check_memory(memory)


def test_amounts_of_memory():
    for memory in (None, 1, 0.5, 1e-9):
        check_memory(memory)


def make_result(samples: int, start: int = 0) -> Result:
    numbers = torch.arange(start, start + samples)
    return Result(
        scores=numbers[:, None, None].expand(-1, 2, 3).double(),
        classes=numbers[:, None],
        logits=numbers[:, None].double(),
        layout=Layout(prefix=1),
        tokens=Tokens([[str(n)] for n in numbers.tolist()], [[0]] * samples),
        details=[[{"number": n}] for n in numbers.tolist()],
    )


def test_the_last_samples_of_a_result():
    last = make_result(5).select_last(2)
    assert last.classes[:, 0].tolist() == [3, 4]
    assert last.scores[:, 0, 0].tolist() == last.logits[:, 0].tolist() == [3.0, 4.0]
    assert last.tokens.strings == [["3"], ["4"]]
    assert last.details == [[{"number": 3}], [{"number": 4}]]
    both = make_result(5)._replace(others=(make_result(5, 10),))
    assert both.select_last(1).others[0].classes.tolist() == [[14]]
    assert both.select_last(5) is both


def test_results_of_chunks_become_one():
    whole, chunks = make_result(5), [make_result(2), make_result(2, 2), make_result(1, 4)]
    found = Result.concatenate(chunks)
    for name in ("scores", "classes", "logits"):
        assert torch.equal(getattr(found, name), getattr(whole, name))
    assert found.tokens == whole.tokens
    assert found.details == whole.details
    assert Result.concatenate([whole]) is whole
    without = [chunk._replace(tokens=None, details=[]) for chunk in chunks]
    joined = Result.concatenate(without)
    assert (joined.tokens, joined.columns, joined.details) == (None, None, [])
    assert (joined.target_names, joined.values, joined.probabilities) == (None, None, None)
    several = [chunk._replace(others=(chunk, whole)) for chunk in chunks]
    first, second = Result.concatenate(several).others
    assert torch.equal(first.classes, whole.classes)
    assert len(second.classes) == 15
