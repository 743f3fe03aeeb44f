"""Running the model again: at other inputs, in parts that fit into memory, with progress."""

import io
import sys

import pytest
import torch
from torch import nn

from tests.zoo import CASES, HandWrittenViT, built, images, run, sample
from whence import Explainer, WhenceError
from whence.evidence.forwards import Forwards
from whence.inputs.arguments import ModelArguments
from whence.tracing import Edit, record
from whence.tracing.graph.blocks import find_blocks

MANY = {"occlusion": {}, "rise": {"masks": 30}, "value_zeroing": {}, "smoothgrad": {"samples": 9}}


def forwards_of(name: str, memory: float | None = None) -> tuple[Forwards, nn.Module, object]:
    case = CASES[name]
    model, inputs = built(case), case.inputs()
    call = ModelArguments.from_inputs(inputs, model)
    traced = record(model, call.args, dict(call.kwargs), call.main_at)
    return Forwards(model, call, None, traced, memory), model, inputs


def logits_of(model: nn.Module, inputs: object) -> torch.Tensor:
    output = run(model, inputs)
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize("name", CASES)
def test_rows_are_samples_with_other_inputs(name):
    forwards, model, inputs = forwards_of(name)
    samples = torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        expected = logits_of(model, inputs)
    again = forwards(forwards.inputs[samples], samples)
    assert torch.allclose(again, expected[samples], atol=1e-5)
    # Rows of one sample with the input of another: the other's padding does not come along.
    changed = forwards(forwards.inputs[[1, 1]] * 0.5, torch.tensor([1, 1]))
    assert torch.allclose(changed[0], changed[1], atol=1e-6)
    assert not torch.allclose(changed[0], expected[1], atol=1e-4)


@pytest.mark.parametrize("name", ["Bert-sdpa", "timm-vit-fused", "hand-written"])
def test_gradients_through_it(name):
    forwards, _, _ = forwards_of(name)
    samples = torch.tensor([1, 0])
    gradients = []
    for kind in ("plain", "balanced"):
        inputs = forwards.inputs[samples].requires_grad_()
        logits = forwards.differentiable(kind)(inputs, samples)
        gradients.append(torch.autograd.grad(logits[:, 0].sum(), inputs)[0])
    case = CASES[name]
    for found, kind in zip(gradients, ("plain", "balanced"), strict=True):
        result = Explainer(built(case)).explain(
            case.inputs(), 0, method="input_x_gradient", gradients=kind, keep_evidence=True
        )
        expected = result.evidence.input_gradient[samples]
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
    assert not torch.allclose(*gradients, rtol=1e-2)


def test_edits_change_single_operations():
    forwards, model, inputs = forwards_of("hand-written")
    call = ModelArguments.from_inputs(inputs, model)
    traced = record(model, call.args, dict(call.kwargs), call.main_at)
    block = find_blocks(traced)[1]
    samples = torch.arange(3)
    with torch.no_grad():
        expected = model(inputs)
    seen = []
    same = forwards.run_edited(
        samples, {block.output.index: Edit(output=lambda out: (seen.append(out), out)[1])}
    )
    assert torch.allclose(same, expected, atol=1e-6)
    assert torch.allclose(seen[0].detach(), block.output.output, atol=1e-6)
    without = forwards.run_edited(
        samples, {block.site.product.index: Edit(inputs=lambda a, b: (a, b * 0))}
    )
    model.blocks[1].out.data.zero_()  # adds nothing, just as values of zero do
    with torch.no_grad():
        assert torch.allclose(without, model(inputs), atol=1e-5)


def test_the_bound_sets_how_many_rows_go_together():
    whole, _, _ = forwards_of("timm-vit-fused")
    half, _, _ = forwards_of("timm-vit-fused", memory=1.0)
    assert whole.rows_at_once == pytest.approx(2 * half.rows_at_once, rel=0.01)
    least, _, _ = forwards_of("timm-vit-fused", memory=1e-9)
    assert least.rows_at_once == 1
    assert [part.stop - part.start for part in least.parts(3, "x")] == [1, 1, 1]
    assert [(part.start, part.stop) for part in whole.parts(5, "x", at_once=2)] == [
        (0, 2),
        (2, 4),
        (4, 5),
    ]


class Counting(HandWrittenViT):
    """Notes how many images each forward pass gets."""

    sizes: list[int] = []

    def forward(self, image):
        self.sizes.append(len(image))
        return super().forward(image)


@pytest.mark.parametrize("method", MANY)
def test_no_pass_is_larger_than_the_bound(method):
    model = Counting().double()
    pixels = images(32, 32).double()[:2]
    Counting.sizes.clear()
    free = Explainer(model).explain(pixels, method=method, **MANY[method])
    assert max(Counting.sizes) > 4
    traced = record(model, (pixels,), {}, 0)
    four_rows = 4.5 / (Forwards(model, ModelArguments((pixels,)), None, traced, 1.0).rows_at_once)
    Counting.sizes.clear()
    bound = Explainer(model).explain(pixels, method=method, memory=four_rows, **MANY[method])
    assert max(Counting.sizes) <= 4
    assert len(Counting.sizes) > 4
    assert torch.allclose(free.scores, bound.scores, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("memory", [0, -1.0, float("nan"), float("inf"), "much", True])
def test_a_bound_that_is_none(memory):
    with pytest.raises(WhenceError, match="memory is a number of gibibytes above 0, such as"):
        Explainer(HandWrittenViT()).explain(images(32, 32), method="occlusion", memory=memory)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_in_a_terminal_alone(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    Explainer(HandWrittenViT()).explain(images(32, 32), method="occlusion")
    assert "covering" in shown.getvalue()
    silent = io.StringIO()
    monkeypatch.setattr(sys, "stderr", silent)
    Explainer(HandWrittenViT()).explain(images(32, 32), method="occlusion")
    assert silent.getvalue() == ""


def test_some_rows_of_a_call():
    case = CASES["Bert-sdpa"]
    inputs = {**case.inputs(), "position_ids": torch.arange(10)[None], "return_dict": True}
    call = ModelArguments.from_inputs(inputs, built(case)).rows(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(call.main, inputs["input_ids"][[2, 2, 0, 1]])
    assert torch.equal(call.kwargs["attention_mask"], inputs["attention_mask"][[2, 2, 0, 1]])
    assert call.kwargs["position_ids"].shape == (1, 10)
    assert call.kwargs["return_dict"] is True
    assert torch.equal(call.padding, inputs["attention_mask"][[2, 2, 0, 1]] == 0)


def test_a_model_that_reads_its_input_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Embedding(90, 32), nn.Embedding(90, 32)
            self.inner = CASES["Bert-sdpa"].build().bert
            self.head = nn.Linear(32, 3)

        def forward(self, input_ids):
            embedded = self.first(input_ids) + self.second(input_ids)
            return self.head(self.inner(inputs_embeds=embedded).last_hidden_state[:, 0])

    inputs = {"input_ids": sample(CASES["Bert-sdpa"].inputs(), slice(0, 2))["input_ids"]}
    with pytest.raises(WhenceError, match="reads its input in 2 places"):
        Explainer(Twice()).explain(inputs, method="occlusion")
