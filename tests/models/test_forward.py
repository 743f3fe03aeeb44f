"""Running a loaded model plainly: how many rows go together, and how products are computed."""

import dataclasses

import pytest
import torch

from tests.saved import make_photo
from whence.models.forward import choose_chunk_size, compute_logits, use_loaded_precision


@pytest.mark.parametrize(
    ("threads", "watched", "size"), [(1, False, 4), (1, True, 4), (4, False, 16), (4, True, 8)]
)
def test_each_thread_gets_a_few_photos(vit, monkeypatch, threads, watched, size):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert choose_chunk_size(vit, watched) == size


def test_no_more_photos_go_together_than_texts(vit, bert, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert choose_chunk_size(vit) == choose_chunk_size(bert) == 32
    assert choose_chunk_size(bert, is_watched=True) == 8
    assert choose_chunk_size(dataclasses.replace(vit, device=torch.device("cuda"))) == 256


def count_quick_products(function):
    with torch.profiler.profile() as profile:
        found = function()
    counts = {one.key: one.count for one in profile.key_averages()}
    return found, counts.get("mkldnn::_linear_pointwise", 0)


def test_logits_are_computed_by_quick_products(vit, quick_products):
    inputs = vit.prepare([make_photo()]).inputs
    with torch.no_grad():
        expected = vit.run(inputs).logits
    found, count = count_quick_products(lambda: compute_logits(vit, inputs))
    assert count > 6
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_no_weights_of_another_type_stay(vit):
    """Whoever computes in float16 around it would multiply by weights of bfloat16."""
    coarse = dataclasses.replace(vit, precision="bfloat16")
    inputs = vit.prepare([make_photo()]).inputs
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        with use_loaded_precision(coarse):
            assert vit.run(inputs).logits.dtype == torch.bfloat16
        assert vit.run(inputs).logits.dtype == torch.float16


def test_a_precision_goes_before_quick_products(vit, quick_products):
    coarse = dataclasses.replace(vit, precision="bfloat16")
    inputs = vit.prepare([make_photo()]).inputs
    with use_loaded_precision(coarse):
        found, count = count_quick_products(lambda: compute_logits(coarse, inputs))
    assert (found.dtype, count) == (torch.bfloat16, 0)
