"""The arguments of a model: which one is explained, rows of them, and what is refused."""

import pytest
import torch
from torch import nn

from tests.zoo import CASES, build_model
from whence import WhenceError
from whence.inputs.arguments import ModelArguments, list_tensors

MODEL = nn.Linear(2, 2)


def test_a_tensor_is_the_first_argument():
    x = torch.ones(2, 3)
    arguments = ModelArguments.from_inputs(x, MODEL)
    assert arguments.main is x
    assert (arguments.args, arguments.main_at, dict(arguments.kwargs)) == ((x,), 0, {})


@pytest.mark.parametrize(
    ("names", "main"),
    [
        (("attention_mask", "input_ids"), "input_ids"),
        (("input_ids", "inputs_embeds"), "inputs_embeds"),
        (("mask", "pixel_values"), "pixel_values"),
        (("first", "second"), "first"),
        (("second", "mine"), "mine"),
    ],
)
def test_the_explained_argument_of_a_mapping(names, main):
    model = nn.Linear(2, 2)
    model.main_input_name = "mine"
    given = {name: torch.ones(2, 3) for name in names}
    arguments = ModelArguments.from_inputs({"flag": True, **given}, model)
    assert arguments.main_at == main
    assert arguments.main is given[main]
    assert len(arguments.tensors) == 2


def test_the_user_says_what_is_explained():
    given = {name: torch.ones(2, 3) for name in ("first", "second", "third")}
    arguments = ModelArguments.from_inputs(given, MODEL, of="second")
    assert (arguments.main_at, arguments.explained_names) == ("second", ("second",))
    several = ModelArguments.from_inputs(given, MODEL, of=["third", "first"])
    assert several.main is given["third"]
    assert several.explained_names == ("third", "first")
    other = several.focus("first")
    assert other.main is given["first"]
    assert other.explained_names == ("first", "third")


def test_a_tensor_is_named_by_position_or_parameter():
    x = torch.ones(2, 3)
    for of in (0, "input", [0], ["input"]):  # the parameter of Linear.forward
        assert ModelArguments.from_inputs(x, MODEL, of=of).explained_names == (0,)
    with pytest.raises(WhenceError, match=r"of='output' names no tensor of the inputs; .* hold 0"):
        ModelArguments.from_inputs(x, MODEL, of="output")


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("pixels", "of='pixels' names no tensor of the inputs; they hold 'input_ids', 'other'"),
        (["input_ids", "flag"], "of='flag' names no tensor"),
        (0, "of=0 names no tensor"),
        ([], r"of is the name of an input, .* not \[\]"),
        (["other", "other"], "a list of different ones"),
        (True, "not True"),
        (1.5, "not 1.5"),
    ],
)
def test_names_of_no_input(of, message):
    given = {"input_ids": torch.ones(2, 3), "other": torch.ones(2, 3), "flag": True}
    with pytest.raises(WhenceError, match=message):
        ModelArguments.from_inputs(given, MODEL, of=of)


def test_padding_is_what_the_attention_mask_leaves_out():
    ids, mask = torch.zeros(2, 3, dtype=torch.long), torch.tensor([[1, 1, 0]])
    once = ModelArguments((), {"input_ids": ids, "attention_mask": mask}, "input_ids")
    assert once.padding.tolist() == [[False, False, True]] * 2
    each = ModelArguments((), {"input_ids": ids, "attention_mask": mask.expand(2, -1)}, "input_ids")
    assert torch.equal(each.padding, once.padding)
    for other in (None, torch.ones(2, 1, 3, 3)):
        given = {"input_ids": ids, "attention_mask": other}
        assert ModelArguments((), given, "input_ids").padding is None


def test_some_rows():
    case = CASES["Bert-sdpa"]
    inputs = {**case.inputs(), "position_ids": torch.arange(10)[None], "return_dict": True}
    arguments = ModelArguments.from_inputs(inputs, build_model(case))
    with pytest.raises(RuntimeError, match="is not known"):
        arguments.select_rows(slice(1, 3))
    arguments = arguments.with_rows(("input_ids", "attention_mask"))
    for samples in (torch.tensor([2, 2, 0, 1]), slice(1, 3)):
        chosen = arguments.select_rows(samples)
        assert torch.equal(chosen.main, inputs["input_ids"][samples])
        assert torch.equal(chosen.kwargs["attention_mask"], inputs["attention_mask"][samples])
        assert chosen.kwargs["position_ids"].shape == (1, 10)
        assert chosen.kwargs["return_dict"] is True
        assert torch.equal(chosen.padding, inputs["attention_mask"][samples] == 0)


def test_tensors_are_replaced_in_their_order():
    a, b, c = (torch.full((2, 2), float(n)) for n in range(3))
    arguments = ModelArguments((a, "x"), {"b": b, "flag": True, "c": c}, "b")
    others = [t + 10 for t in arguments.tensors]
    replaced = arguments.replace_tensors(others)
    assert replaced.args == (others[0], "x")
    assert dict(replaced.kwargs) == {"b": others[1], "flag": True, "c": others[2]}
    assert replaced.main is others[1]


def test_the_explained_argument_is_replaced():
    a, b = torch.zeros(2, 2), torch.ones(2, 2)
    assert ModelArguments((a, "x")).replace_main(b).args == (b, "x")
    named = ModelArguments((), {"x": a, "y": a}, "x").replace_main(b)
    assert dict(named.kwargs) == {"x": b, "y": a}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("a photo.jpg", "Inputs are a tensor, or a mapping of tensors .* not str"),
        ({"input_ids": [[1, 2]]}, 'hold no tensor.*return_tensors="pt"'),
        (torch.tensor([[1.0, float("nan")]]), "hold NaN or infinite values"),
        ({"x": torch.ones(2, 2), "mask": torch.full((2, 2), float("inf"))}, "NaN or infinite"),
        (torch.zeros(7), r"A batch is needed, but the input has shape \(7,\)"),
        (torch.zeros(0, 3), r"The batch is empty: its shape is \(0, 3\)"),
        (torch.zeros(2, 3, device="meta"), r"inputs are on meta but the model is on cpu"),
    ],
)
def test_inputs_that_are_refused(inputs, message):
    with pytest.raises(WhenceError, match=message):
        ModelArguments.from_inputs(inputs, MODEL)


def test_all_parameters_and_buffers_are_listed():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 1)))
    model.append(model[0])  # a module that is there twice
    listed = {id(tensor) for tensor in list_tensors(model)}
    assert listed == {id(t) for t in (*model.parameters(), *model.buffers())}
