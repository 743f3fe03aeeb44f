"""Torch calls: the names by which they are recognised."""

import pytest
import torch
from torch import Tensor

from whence.tracing import calls


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.add, "add"),
        (Tensor.add, "add"),
        (Tensor.shape.__get__, "shape"),
        (Tensor.mT.__get__, "mT"),
        ("cumsum", "cumsum"),
        (torch.ops.aten.add.Tensor, "add"),
    ],
)
def test_names_by_which_calls_are_recognised(function, name):
    assert calls.name_of(function) == name
