"""A trace as each of several explained inputs sees it."""

import gc
import weakref

import pytest
import torch

from tests.two_inputs import TwoTowers, make_pair
from whence import WhenceError
from whence.tracing import record
from whence.tracing.views import find_dependent, select_view


def test_each_input_has_its_rows_and_the_attention_that_depends_on_it():
    model, inputs = TwoTowers(), make_pair(images=2, texts=3)
    trace = record(model, (), inputs, ("pixels", "ids"))
    assert len(trace.sites) == 3  # two of images, one of texts
    of_images, of_texts = select_view(trace, "pixels"), select_view(trace, "ids")
    assert [site.where.split("'")[1] for site in of_images.sites] == ["images.0", "images.1"]
    assert [site.where.split("'")[1] for site in of_texts.sites] == ["texts.0"]
    assert (of_images.batch, of_texts.batch) == (2, 3)
    expected = model(**inputs)
    assert torch.allclose(of_images.logits, expected["logits_per_image"])
    assert torch.allclose(of_texts.logits, expected["logits_per_text"])
    assert [place.name for place in of_texts.inputs] == ["ids"]
    assert of_texts.attention()[0].shape == (3, 2, 5, 5)


def test_gradients_of_a_view_are_those_of_autograd():
    model, inputs = TwoTowers().double(), make_pair(images=2, texts=3)
    inputs["pixels"] = inputs["pixels"].double()
    trace = record(model, (), inputs, ("ids", "pixels"))
    pixels = inputs["pixels"].clone().requires_grad_()
    logits = model(pixels, inputs["ids"])["logits_per_image"]
    (expected,) = torch.autograd.grad(logits[0, 2] + logits[1, 0], pixels)
    view = select_view(trace, "pixels")
    assert {entry.operation.batch for entry in trace.entries} == {2}
    (found,) = view.read(torch.tensor([[2], [0]]), [view.inputs[0].leaf])
    assert torch.allclose(found[0], expected)


def test_one_input_is_its_own_view():
    inputs = make_pair()
    trace = record(TwoTowers(), (), inputs, "pixels")
    assert select_view(trace, "pixels") is trace
    assert len(trace.sites) == 2  # the texts are constants


def test_views_are_freed_with_their_trace():
    trace = record(TwoTowers(), (), make_pair(), ("pixels", "ids"))
    view = weakref.ref(select_view(trace, "ids"))
    gc.disable()
    try:
        del trace
        assert view() is None
    finally:
        gc.enable()


def test_an_input_without_attention_is_refused():
    class WithFacts(TwoTowers):
        def forward(self, pixels, ids, facts):
            found = super().forward(pixels, ids)["logits_per_image"]
            return found + facts @ torch.ones(4, found.shape[1])

    inputs = {**make_pair(), "facts": torch.randn(2, 4)}
    with pytest.raises(WhenceError, match=r"No attention .* depends on the input 'facts'"):
        record(WithFacts(), (), inputs, ("pixels", "facts"))


def test_an_input_that_does_not_matter_is_refused():
    class WithoutTexts(TwoTowers):
        def forward(self, pixels, ids):
            return super().forward(pixels, torch.zeros_like(ids))["logits_per_image"]

    with pytest.raises(WhenceError, match="do not depend on the input"):
        record(WithoutTexts(), (), make_pair(images=3), ("pixels", "ids"))


def test_dependence_leaves_out_what_was_overwritten():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    both, first = a * 2 + b, a.exp().sin()
    nodes = [both.grad_fn, first.grad_fn]
    leaf = first.grad_fn.next_functions[0][0].next_functions[0][0]
    of_b = both.grad_fn.next_functions[1][0]
    assert find_dependent(nodes, {leaf}, set()) == [True, True]
    assert find_dependent(nodes, {of_b}, set()) == [True, False]
    assert find_dependent(nodes, {leaf}, {both.grad_fn}) == [False, True]
