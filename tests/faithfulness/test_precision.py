"""Curves in float16: where the processor is quick at it, and whole photos keep probabilities."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.faithfulness.helpers import explain_by
from tests.saved import make_photo
from whence._util import torch_products
from whence.faithfulness import measure, measure_photos, precision
from whence.report.measuring import describe_measuring


@pytest.fixture(autouse=True)
def quick_float16(monkeypatch):
    """A processor that multiplies float16 quickly."""
    monkeypatch.setattr(precision, "has_quick_float16", lambda: True)


@pytest.fixture
def vit(vit):
    """A model of the test's own."""
    return replace(vit, model=deepcopy(vit.model))


def list_curves(found):
    return torch.tensor([[one.most, one.least] for one in found.curves])


def note_types(model):
    """A list that gets the type of the logits of each forward pass."""
    types = []
    model.register_forward_hook(lambda model, inputs, output: types.append(output.logits.dtype))
    return types


def measure_both(loaded, photo):
    """Curves of the report, those of all steps in full precision, and types of the first ones."""
    exact = measure(loaded, *photo, draws=0)
    types = note_types(loaded.model)
    (found,) = measure_photos(loaded, [photo])
    return list_curves(found), list_curves(exact), set(types)


def test_curves_are_nearly_those_of_full_precision(vit):
    photo = explain_by(vit, make_photo(), "gae", "tiba", classes=2)
    found, exact, types = measure_both(vit, photo)
    assert types == {torch.float16}
    assert torch.equal(found[..., 0], exact[..., 0])  # the explanation's own
    moved = (found - exact).abs().max()
    assert 0 < moved < 0.002
    assert not torch.is_autocast_enabled("cpu")


def test_a_processor_that_is_slow_at_it_uses_full_precision(vit, full_precision):
    found, exact, types = measure_both(vit, explain_by(vit, make_photo(), "gae"))
    assert types == {torch.float32}
    assert torch.allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_other_types_keep_theirs(vit, dtype):
    vit.model.to(dtype)
    found, exact, types = measure_both(vit, explain_by(vit, make_photo(), "gae"))
    assert types == {dtype}
    assert torch.allclose(found, exact, atol=1e-6)


def test_the_precision_that_was_asked_for_is_used(vit):
    photo = explain_by(vit, make_photo(), "gae")
    types = note_types(vit.model)
    measure_photos(replace(vit, precision="bfloat16"), [photo])
    assert set(types) == {torch.bfloat16}


def test_where_whole_photos_get_other_probabilities_full_precision_is_used(vit, monkeypatch):
    """A head whose first class is favoured in float16."""
    classifier = vit.model.classifier
    plain = classifier.forward

    def favour_first(x):
        logits = plain(x)
        return logits + (logits.dtype == torch.float16) * torch.eye(logits.shape[1])[0].to(logits)

    photo = explain_by(vit, make_photo(), "gae", target=0)
    monkeypatch.setattr(classifier, "forward", favour_first)
    found, exact, types = measure_both(vit, photo)
    assert types == {torch.float16, torch.float32}
    assert torch.allclose(found, exact, atol=1e-6)


def test_numbers_that_float16_does_not_hold_are_computed_again(vit, monkeypatch):
    """Activations of photos without some pixels are too large; those of whole photos are not."""
    photo = explain_by(vit, make_photo(), "gae")
    whole = photo[0].inputs
    classifier, rows = vit.model.classifier, []
    plain = classifier.forward

    def overflow(x):
        logits = plain(x)
        rows.append(len(x))
        is_first = len(rows) == 1 and len(x) == len(whole)
        return logits if is_first or logits.dtype != torch.float16 else logits * 1e6

    monkeypatch.setattr(classifier, "forward", overflow)
    (found,) = measure_photos(vit, [photo])
    monkeypatch.undo()
    exact = measure(vit, *photo, draws=0)
    assert torch.allclose(list_curves(found), list_curves(exact), atol=1e-6)


def test_a_model_that_float16_stops_runs_in_full_precision(vit, monkeypatch):
    photo = explain_by(vit, make_photo(), "gae")
    classifier = vit.model.classifier
    plain = classifier.forward

    def refuse(x):
        logits = plain(x)
        if logits.dtype == torch.float16:
            raise RuntimeError("not implemented for 'Half'")
        return logits

    monkeypatch.setattr(classifier, "forward", refuse)
    found, exact, types = measure_both(vit, photo)
    assert types == {torch.float32}
    assert torch.allclose(found, exact, atol=1e-6)


def test_the_page_says_so(vit, bert, monkeypatch):
    said = "precision, of photos"
    assert "float16" in describe_measuring([vit])["faithfulness"][said]
    for loaded in (bert, replace(vit, precision="bfloat16"), replace(vit, device="cuda")):
        assert said not in describe_measuring([loaded])["faithfulness"]
    monkeypatch.setattr(precision, "has_quick_float16", lambda: False)
    assert said not in describe_measuring([vit])["faithfulness"]


def test_which_processors_are_quick(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: True, raising=False)
    assert torch_products.has_quick_float16() == torch.backends.mkldnn.is_available()
    with torch.backends.mkldnn.flags(enabled=False):
        assert not torch_products.has_quick_float16()
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False, raising=False)
    assert not torch_products.has_quick_float16()
    monkeypatch.delattr(torch.cpu, "_is_amx_fp16_supported")
    assert not torch_products.has_quick_float16()
