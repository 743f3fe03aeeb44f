"""Functions taken as a whole: their rows, and which of them are norms."""

import pytest
import torch

from tests.tracing.ops.helpers import double
from whence.tracing.ops.function import Function, is_norm


@pytest.mark.parametrize("dims", [1, 2])
def test_a_function_knows_how_many_dimensions_it_mixes(dims):
    """Rows of a softmax can be computed alone, but not columns."""
    softmax = Function("pass", lambda x: x.softmax(-1), mixed_dims=1)
    x = double(2, 5, 3) if dims == 1 else double(2, 4, 5, 3)
    softmax.forward(x)
    small, shapes = softmax.narrow_rows(-2, 1, 2)
    assert torch.equal(small.output, softmax.output[..., 1:3, :])
    assert shapes == (x.shape,)
    assert softmax.narrow_rows(-1, 0, 1) is None
    unknown = Function("pass", torch.tanh)
    unknown.forward(x)
    assert unknown.narrow_rows(-2, 1, 2) is None
    assert not unknown.supports_classes


@pytest.mark.parametrize(
    ("name", "norm"),
    [("layer_norm", True), ("LlamaRMSNorm", True), ("batch_norm", False), ("softmax", False)],
)
def test_norms_are_known_by_name(name, norm):
    assert is_norm(Function("pass", torch.tanh, name=name)) is norm
