"""Running the model again: at other inputs, in chunks that fit into memory, with progress."""

import io
import sys

import pytest
import torch
from torch import nn

from tests.tracing.helpers import record_inputs
from tests.two_inputs import TwoTowers, make_pair
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, run_model, select_samples
from whence import Explainer, WhenceError
from whence.evidence.forwards import Forwards
from whence.inputs.arguments import ModelArguments
from whence.rules.balanced import BALANCED
from whence.tracing import Edit, record
from whence.tracing.graph import find_blocks

MANY = {"occlusion": {}, "rise": {"masks": 30}, "value_zeroing": {}, "smoothgrad": {"samples": 9}}
GIBIBYTE = 2**30


def make_forwards(name: str, max_bytes: float = 2 * GIBIBYTE) -> tuple[Forwards, nn.Module, object]:
    model, inputs = build_model(CASES[name]), CASES[name].inputs()
    arguments = ModelArguments.from_inputs(inputs, model)
    forwards = Forwards(model, arguments, None, record_inputs(model, inputs), max_bytes)
    return forwards, model, inputs


def compute_logits(model: nn.Module, inputs: object) -> torch.Tensor:
    output = run_model(model, inputs)
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize("name", CASES)
def test_rows_are_samples_with_other_inputs(name):
    forwards, model, inputs = make_forwards(name)
    samples = torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        expected = compute_logits(model, inputs)
    again = forwards([x[samples] for x in forwards.inputs], samples)
    assert torch.allclose(again, expected[samples], atol=1e-5)
    # Rows of one sample with the input of another: the other's padding does not come along.
    changed = forwards([x[[1, 1]] * 0.5 for x in forwards.inputs], torch.tensor([1, 1]))
    assert torch.allclose(changed[0], changed[1], atol=1e-6)
    assert not torch.allclose(changed[0], expected[1], atol=1e-4)


@pytest.mark.parametrize("name", ["Bert-sdpa", "timm-vit-fused", "hand-written"])
def test_autograd_goes_through_it(name):
    forwards, _, _ = make_forwards(name)
    samples = torch.tensor([1, 0])
    gradients = []
    for rule_set in (None, BALANCED):
        inputs = forwards.inputs[0][samples].requires_grad_()
        logits = forwards.as_function(rule_set)(inputs, samples)
        gradients.append(torch.autograd.grad(logits[:, 0].sum(), inputs)[0])
    case = CASES[name]
    for found, kind in zip(gradients, ("plain", "balanced"), strict=True):
        result = Explainer(build_model(case)).explain(
            case.inputs(), 0, method="input_x_gradient", gradients=kind, keep_evidence=True
        )
        expected = result.evidence.input_gradient[0][samples]
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
    assert not torch.allclose(*gradients, rtol=1e-2)


def test_edits_change_single_operations():
    forwards, model, inputs = make_forwards("hand-written")
    block = find_blocks(record_inputs(model, inputs))[1]
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


def test_the_model_goes_on_from_another_value():
    """Two values of each sample in one pass, and gradients that end at them."""
    forwards, model, inputs = make_forwards("hand-written")
    block = find_blocks(record_inputs(model, inputs))[-1]
    values = torch.cat([block.output.output, 2 * block.output.output])
    tail, leaf = forwards.record_from(block.output.index, values, copies=2)
    plain = values.clone().requires_grad_()
    expected = model.head(model.norm(plain)[:, 0])
    assert torch.allclose(tail.logits, expected, atol=1e-5)
    (gradient,) = torch.autograd.grad(expected[:, 1].sum(), plain)
    (read,) = tail.read(torch.full((len(values), 1), 1), [leaf])
    assert torch.allclose(read[0], gradient, atol=1e-6)


def test_the_bound_sets_how_many_rows_go_together():
    whole, _, _ = make_forwards("timm-vit-fused")
    half, _, _ = make_forwards("timm-vit-fused", GIBIBYTE)
    assert whole.rows_at_once == pytest.approx(2 * half.rows_at_once, rel=0.01)
    least, _, _ = make_forwards("timm-vit-fused", 1)
    assert least.rows_at_once == 1
    assert [chunk.stop - chunk.start for chunk in least.chunks(3, "x")] == [1, 1, 1]
    assert [(chunk.start, chunk.stop) for chunk in whole.chunks(5, "x", at_once=2)] == [
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
    pixels = make_images(32, 32).double()[:2]
    Counting.sizes.clear()
    free = Explainer(model).explain(pixels, method=method, **MANY[method])
    assert max(Counting.sizes) > 4
    trace = record_inputs(model, pixels)
    one = Forwards(model, ModelArguments((pixels,)), None, trace, GIBIBYTE)
    four_rows = 4.5 / one.rows_at_once
    Counting.sizes.clear()
    bound = Explainer(model).explain(pixels, method=method, memory=four_rows, **MANY[method])
    assert max(Counting.sizes) <= 4
    assert len(Counting.sizes) > 4
    assert torch.allclose(free.scores, bound.scores, rtol=1e-8, atol=1e-12)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_in_a_terminal_alone(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    Explainer(HandWrittenViT()).explain(make_images(32, 32), method="occlusion")
    assert "covering" in shown.getvalue()
    silent = io.StringIO()
    monkeypatch.setattr(sys, "stderr", silent)
    Explainer(HandWrittenViT()).explain(make_images(32, 32), method="occlusion")
    assert silent.getvalue() == ""


def test_rows_that_depend_on_each_other_are_refused():
    class Interacting(HandWrittenViT):
        def forward(self, image):
            return super().forward(image - image.mean(0))

    for pixels in (make_images(32, 32), make_images(32, 32)[:1]):
        with pytest.raises(WhenceError, match=r"cannot prove .* Explainer\(model, per_sample="):
            Explainer(Interacting()).explain(pixels, method="occlusion")
    stated = Explainer(Interacting(), per_sample=()).explain(pixels, method="occlusion")
    assert stated.scores.shape == (1, 16)


@pytest.mark.parametrize(("images", "texts"), [(1, 1), (3, 3), (2, 3)])
def test_images_that_are_compared_with_texts_have_rows_of_their_own(images, texts):
    model, inputs = TwoTowers(), make_pair(images, texts)
    arguments = ModelArguments.from_inputs(inputs, model, of="pixels")
    trace = record(model, (), inputs, "pixels")
    forwards = Forwards(model, arguments, None, trace, GIBIBYTE)
    samples = torch.tensor([0, images - 1, 0, 0, 0])
    again = forwards([x[samples] for x in forwards.inputs], samples)
    expected = model(**inputs)["logits_per_image"][samples]
    assert torch.allclose(again, expected, atol=1e-5)


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

    inputs = {"input_ids": select_samples(CASES["Bert-sdpa"].inputs(), slice(0, 2))["input_ids"]}
    model = Twice().eval()
    result = Explainer(model).explain(inputs, 1, method="occlusion")
    with torch.no_grad():
        whole = model(**inputs)[:, 1]
        for position in range(inputs["input_ids"].shape[1]):
            hidden = []
            for table in (model.first, model.second):
                hidden.append(table(inputs["input_ids"]))
                hidden[-1][:, position] = 0
            read = model.inner(inputs_embeds=sum(hidden)).last_hidden_state[:, 0]
            expected = whole - model.head(read)[:, 1]
            assert torch.allclose(result.scores[:, position], expected, rtol=1e-4, atol=1e-6)


class Overwriting(nn.Module):
    """A text model that scales its embeddings in place, as CTRL does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.vit = nn.Embedding(20, 32), HandWrittenViT()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        x *= 3
        for block in self.vit.blocks:
            x = block(x)
        return self.vit.head(x[:, 0])


def test_a_model_that_writes_to_its_embeddings():
    model, ids = Overwriting(), torch.arange(6).reshape(1, 6)
    scores = Explainer(model).explain(ids, 0, method="occlusion").scores[0]
    with torch.no_grad():
        whole, expected = model(ids)[0, 0], []
        for token in range(6):
            changed = ids.clone()
            changed[0, token] = 19
            model.words.weight[19] = 0
            expected.append(whole - model(changed)[0, 0])
    assert torch.allclose(scores, torch.stack(expected), atol=1e-5)
    assert scores.abs().max() > 1e-3
