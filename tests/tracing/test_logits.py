"""Which logits of a model belong to the explained input."""

import types

import pytest
import torch

from whence import WhenceError
from whence.tracing.logits import find_logits, read_logits

PER_IMAGE = torch.randn(2, 3)


def test_a_text_and_an_image_that_are_compared_have_rows_of_their_own():
    for other in ("image", "audio", "video"):
        returned = {
            "loss": None,
            f"logits_per_{other}": PER_IMAGE,
            "logits_per_text": PER_IMAGE.T,
            "text_embeds": torch.zeros(3, 4),
        }
        of_image, of_text = read_logits(returned, of_text=False), read_logits(returned, True)
        assert torch.equal(of_image.values, PER_IMAGE)
        assert torch.equal(of_text.values, PER_IMAGE.T)
        assert (of_image.columns, of_text.columns) == ("text", other)


def test_a_pair_of_transposes_is_read_as_such():
    square = torch.randn(3, 3)
    for returned in ((square, square.T), (square.T.contiguous().T, square), [PER_IMAGE]):
        assert read_logits(returned, of_text=False).values is returned[0]
    assert read_logits((square, square.T), of_text=True).columns == "image"
    assert torch.equal(read_logits((square, square.T), of_text=True).values, square.T)
    # Two outputs that only happen to have such shapes are no such pair.
    assert read_logits((square, torch.randn(3, 3)), of_text=True).values is square
    assert read_logits((square, torch.randn(3, 3)), of_text=True).columns is None


def test_logits_come_first():
    logits = torch.zeros(2, 3)
    both = types.SimpleNamespace(logits=logits, logits_per_text=PER_IMAGE)
    assert read_logits(both, of_text=True) == (logits, None)
    mapping = {"logits_per_image": PER_IMAGE, "logits_per_text": PER_IMAGE.T, "logits": logits}
    assert read_logits(mapping, of_text=True).values is logits
    assert find_logits({"logits_per_image": PER_IMAGE, "logits_per_text": PER_IMAGE.T}) is PER_IMAGE
    with pytest.raises(WhenceError, match="finds no logits"):
        read_logits({"logits_per_image": PER_IMAGE}, of_text=False)


def test_the_one_field_that_is_named_so_is_the_logits():
    score = torch.randn(2, 3)
    assert find_logits({"question_answering_score": score, "pooled_output": score + 1}) is score
    assert find_logits({"loss": None, "class_logits": score}) is score


def test_two_fields_that_are_named_so_are_refused():
    score = torch.randn(2, 3)
    with pytest.raises(WhenceError, match="finds no logits"):
        find_logits({"start_logits": score, "end_logits": score})
