"""Curves in float16: where the processor is quick at it, and whole photos keep probabilities."""

import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.faithfulness.helpers import explain_by
from tests.saved import make_photo
from whence._util import torch_products
from whence.faithfulness import measure_photos, precision
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


def measure_exactly(loaded, photo):
    """Curves of the report in full precision: the same steps are left out as in float16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "has_quick_float16", lambda: False)
        (found,) = measure_photos(loaded, [photo])
    return list_curves(found)


def measure_both(loaded, photo):
    """Curves of the report, those in full precision, and types of the logits of the first ones."""
    exact = measure_exactly(loaded, photo)
    types = note_types(loaded.model)
    (found,) = measure_photos(loaded, [photo])
    return list_curves(found), exact, set(types)


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


def change_head(loaded, monkeypatch, change):
    """Let a function change the logits that the head gives in float16."""
    classifier = loaded.model.classifier
    plain = classifier.forward

    def forward(x):
        logits = plain(x)
        return change(logits) if logits.dtype == torch.float16 else logits

    monkeypatch.setattr(classifier, "forward", forward)


def favour(logits, target):
    return logits + torch.eye(logits.shape[1])[target].to(logits)


@pytest.mark.parametrize("scale", [1, 40])
def test_where_whole_photos_get_other_log_odds_full_precision_is_used(vit, monkeypatch, scale):
    """The photo may be sure: its probability hardly moves, and those of its curve do."""
    weight = vit.model.classifier.weight
    monkeypatch.setattr(weight, "data", weight.data * scale)
    photo = explain_by(vit, make_photo(), "gae")
    assert (photo[1]["gae"].logits.softmax(-1).max() > 0.99) == (scale > 1)
    target = int(photo[1]["gae"].target)
    change_head(vit, monkeypatch, lambda logits: favour(logits, target))
    found, exact, types = measure_both(vit, photo)
    assert types == {torch.float16, torch.float32}
    assert torch.allclose(found, exact, atol=1e-6 * scale)


def test_each_photo_is_chosen_by_itself(vit, monkeypatch):
    """Of two photos, the first gets other log-odds in float16."""
    photos = [explain_by(vit, make_photo(seed=seed), "gae", target=0) for seed in (0, 1)]
    exact = [measure_exactly(vit, photo) for photo in photos]
    first = photos[0][0].inputs[0]
    plain, given = vit.run, []
    monkeypatch.setattr(type(vit), "run", lambda self, x: (given.append(x.flatten(1)), plain(x))[1])

    def change(logits):
        shared = (given[-1] == first.flatten()).float().mean(1) > 0.5
        return torch.where(shared[:, None], favour(logits, 0), logits)

    change_head(vit, monkeypatch, change)
    for chunk_size in (None, 1, 4):
        found = [list_curves(one) for one in measure_photos(vit, photos, chunk_size=chunk_size)]
        assert torch.allclose(found[0], exact[0], atol=1e-6)
        assert 0 < (found[1] - exact[1]).abs().max() < 0.002
        assert chunk_size is None or max(map(len, given)) <= chunk_size
        given.clear()


def test_numbers_that_float16_does_not_hold_are_computed_again(vit, monkeypatch):
    """Logits of photos without some pixels are too large; those of whole photos are not."""
    photo = explain_by(vit, make_photo(), "gae")
    exact = measure_exactly(vit, photo)
    passes = []
    change_head(
        vit, monkeypatch, lambda x: x * (1e6 if passes.append(len(x)) or len(passes) > 1 else 1)
    )
    (found,) = measure_photos(vit, [photo])
    assert len(passes) > 1
    assert torch.allclose(list_curves(found), exact, atol=1e-6)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, AssertionError])
@pytest.mark.parametrize("first", [1, 2])
def test_a_model_that_float16_stops_runs_in_full_precision(vit, monkeypatch, error, first):
    photo = explain_by(vit, make_photo(), "gae")
    passes = []

    def refuse(logits):
        passes.append(len(logits))
        if len(passes) >= first:
            raise error("not implemented for 'Half'")
        return logits

    change_head(vit, monkeypatch, refuse)
    found, exact, _ = measure_both(vit, photo)
    assert len(passes) >= first
    assert torch.allclose(found, exact, atol=1e-6)


def test_nothing_that_was_cast_stays_for_others(vit):
    """Weights of float16 would meet what the user computes in bfloat16."""
    photo = explain_by(vit, make_photo(), "gae")
    types = note_types(vit.model)
    measure_photos(vit, [photo])
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        vit.model(photo[0].inputs)
        measure_photos(vit, [photo])
        vit.model(photo[0].inputs)
    assert types[0] == torch.float16
    assert set(types[-2:]) == {torch.bfloat16}


def test_threads_of_other_types_do_not_meet(vit):
    photo = explain_by(vit, make_photo(), "gae")
    stop = threading.Event()

    def run_in_bfloat16():
        runs = 0
        while not stop.is_set():
            with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
                vit.model(photo[0].inputs)
            runs += 1
        return runs

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run_in_bfloat16)
        try:
            for loaded in (vit, replace(vit, precision="bfloat16")) * 10:
                measure_photos(loaded, [photo])
        finally:
            stop.set()
        assert other.result() > 0


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
