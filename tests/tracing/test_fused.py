"""Compiled steps compute what the rules compute without them."""

import warnings

import pytest
import torch

from tests.zoo import CASES, built
from whence import Explainer
from whence.tracing import fused, rules
from whence.tracing.operations import Tape

STEPS = (fused.absolute_shares, fused.by_sign, fused.divided, fused.of_weight)


@pytest.fixture
def everywhere(monkeypatch):
    """Fused steps wherever there are such, uncompiled; how often each was taken."""
    taken: dict[str, int] = {}

    def counted(step):
        def call(*args):
            taken[step.__name__] = taken.get(step.__name__, 0) + 1
            return step(*args)

        return call

    monkeypatch.setattr(rules, "compiled", counted)
    monkeypatch.setattr(Tape, "fused", property(lambda _: True, lambda _, __: None), raising=False)
    return taken


@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_the_same_relevance(name, everywhere, monkeypatch):
    case = CASES[name]
    model = built(case).double()
    inputs = case.inputs()
    if "pixel_values" in inputs:
        inputs = {"pixel_values": inputs["pixel_values"].double()}
    explainer = Explainer(model)
    found = explainer.explain(inputs, target=1, method="tiba").scores
    assert set(everywhere) == {
        *("absolute_shares", "by_sign", "divided", "of_weight", "positive_shares"),
    }
    monkeypatch.setattr(Tape, "fused", property(lambda _: False, lambda _, __: None))
    expected = explainer.explain(inputs, target=1, method="tiba").scores
    assert (found - expected).abs().max() < 1e-13 * expected.abs().max()


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch):
    def failing(function, **_):
        def call(*_):
            raise RuntimeError("no compiler\nand more")

        return call

    def halved(x):
        return x / 2

    monkeypatch.setattr(torch, "compile", failing)
    step = fused.compiled(halved)
    with pytest.warns(UserWarning, match=r"cannot compile `halved` here.*: no compiler$"):
        first = step(torch.ones(2, 3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = step(torch.ones(2, 3, 4))
    assert torch.equal(first, second)
    assert torch.equal(first, torch.full((2, 3, 4), 0.5))


def test_steps_see_rows_and_give_back_shapes(monkeypatch):
    """A kernel is made for two dimensions; what has other shapes is folded, however it lies."""
    seen = []

    def watching(function, **_):
        def call(*args):
            seen.extend(tuple(x.shape) for x in args if isinstance(x, torch.Tensor))
            return function(*args)

        return call

    monkeypatch.setattr(torch, "compile", watching)
    fused.compiled.cache_clear()
    try:
        a, b, r = torch.randn(3, 4, 5, 6).transpose(1, 2), torch.randn(3, 5, 4, 6), torch.rand(1)
        to_a, to_b = fused.compiled(fused.absolute_shares)(r.expand(3, 5, 4, 6), a, b, 1e-20)
        expected = r * a.abs() / (a.abs() + b.abs())
        assert to_a.shape == to_b.shape == (3, 5, 4, 6)
        assert torch.allclose(to_a, expected)
        assert torch.allclose(to_a + to_b, r.expand(3, 5, 4, 6))
        s, margin = fused.compiled(fused.positive_shares)(a, b.abs(), b, 1e-20, 1e-3)
        assert s.shape == a.shape
        assert margin.shape == (60,)
        assert set(seen) == {(60, 6)}
    finally:
        fused.compiled.cache_clear()
