"""Interpolation, sampling, pooling and transposed convolutions against their Jacobians."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.tracing.attention_model import AttentionLayer, make_inputs, read_everything
from tests.tracing.recorders.definitions import (
    double,
    find_jacobian,
    read_each,
    record_function,
    share_terms,
)
from whence import Explainer, NoRuleError
from whence.tracing.ops.products import Convolution

IMAGE, SIGNAL, VIDEO = (2, 2, 3, 4), (2, 2, 5), (1, 1, 2, 3, 2)
GRID = torch.rand(2, 2, 3, 2, generator=torch.Generator().manual_seed(7)).double() * 2.2 - 1.1
INDEX = torch.tensor([[[[0, 2], [1, 1]]]]).expand(2, 2, 2, 2)


def interpolate(**settings):
    return lambda x: F.interpolate(x, **settings)


SUMS = {
    "nearest": (interpolate(scale_factor=2), IMAGE),
    "nearest-exact": (interpolate(size=(2, 5), mode="nearest-exact"), IMAGE),
    "linear": (interpolate(scale_factor=1.7, mode="linear"), SIGNAL),
    "bilinear": (interpolate(size=(5, 3), mode="bilinear"), IMAGE),
    "bilinear corners": (interpolate(size=7, mode="bilinear", align_corners=True), IMAGE),
    "antialias": (interpolate(size=(2, 2), mode="bilinear", antialias=True), IMAGE),
    "bicubic": (interpolate(size=(5, 3), mode="bicubic"), IMAGE),
    "bicubic by factor": (interpolate(scale_factor=(1.6, 2.1), mode="bicubic"), IMAGE),
    "bicubic corners": (interpolate(scale_factor=2, mode="bicubic", align_corners=True), IMAGE),
    "bicubic antialias": (interpolate(size=(2, 3), mode="bicubic", antialias=True), IMAGE),
    "trilinear": (interpolate(scale_factor=2, mode="trilinear"), VIDEO),
    "area": (interpolate(size=(2, 2), mode="area"), IMAGE),
    "upsampling module": (torch.nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "grid": (lambda x: F.grid_sample(x, GRID, align_corners=False), IMAGE),
    "grid nearest": (lambda x: F.grid_sample(x, GRID, "nearest", align_corners=True), IMAGE),
    "grid border": (lambda x: F.grid_sample(x, GRID, "bilinear", "border", True), IMAGE),
    "grid bicubic": (lambda x: F.grid_sample(x, GRID, mode="bicubic", align_corners=False), IMAGE),
    "average": (lambda x: F.avg_pool2d(x, 2, 1, 1), IMAGE),
    "average of a signal": (lambda x: F.avg_pool1d(x, 3, 2), SIGNAL),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), IMAGE),
    "fold": (lambda x: F.fold(x.reshape(2, 8, 3), (2, 4), 2), (2, 24)),
    "running sum": (lambda x: x.cumsum(-1), SIGNAL),
    "scatter_add": (
        lambda x: x.new_zeros(2, 2, 4, 2).scatter_add(2, INDEX, x[:, :, :2, :2]),
        IMAGE,
    ),
    "scatter_reduce": (
        lambda x: x.new_zeros(2, 2, 4, 2).scatter_reduce(2, INDEX, x[:, :, :2, :2], "mean"),
        IMAGE,
    ),
    "scatter in place": (
        lambda x: x.new_zeros(2, 2, 4, 2).scatter_add_(2, INDEX, x[:, :, :2, :2]),
        IMAGE,
    ),
    "index_add": (
        lambda x: x.new_zeros(2, 2, 3).index_add(2, torch.tensor([0, 2, 2, 0, 1]), x, alpha=2),
        SIGNAL,
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_weighted_sums_share_by_absolute_values(name):
    function, shape = SUMS[name]
    x = double(*shape)
    jacobian = find_jacobian(function, x)
    trace = record_function(function, x)
    assert torch.allclose(read_each(trace, None), jacobian)
    assert torch.allclose(read_each(trace, "attnlrp"), jacobian)
    stable = read_each(trace, "stable")
    assert torch.allclose(stable, share_terms(jacobian, x, abs), atol=1e-9)
    reaches = jacobian.any(-1)  # a sample beside the image is made of nothing
    assert torch.allclose(stable.sum(-1)[reaches], torch.ones(1).double())
    signed = share_terms(jacobian, x, lambda term: term)
    assert torch.allclose(read_each(trace, "reference"), signed, atol=1e-6, rtol=1e-4)


TRANSPOSED = {
    "signal": (F.conv_transpose1d, SIGNAL, (2, 3, 3), {"stride": 2, "padding": 1}),
    "image": (F.conv_transpose2d, IMAGE, (2, 3, 2, 2), {"stride": 2}),
    "groups": (F.conv_transpose2d, IMAGE, (2, 2, 3, 2), {"groups": 2, "dilation": (1, 2)}),
    "output padding": (
        F.conv_transpose2d,
        IMAGE,
        (2, 1, 3, 3),
        {"stride": (2, 3), "padding": 1, "output_padding": (1, 2)},
    ),
    "video": (F.conv_transpose3d, VIDEO, (1, 2, 2, 2, 1), {}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_share_by_positive_products(name):
    call, shape, size, settings = TRANSPOSED[name]
    x, weight = double(*shape), double(*size)

    def function(x: Tensor) -> Tensor:
        return call(x, weight, **settings)

    jacobian = find_jacobian(function, x)
    trace = record_function(function, x)
    assert [entry.operation.is_transposed for entry in trace.entries] == [True]
    assert torch.allclose(read_each(trace, None), jacobian)
    expected = share_terms(jacobian, x, lambda term: max(term, 0))
    assert torch.allclose(read_each(trace, "stable"), expected, atol=1e-9)
    assert torch.allclose(read_each(trace, "reference"), expected, atol=1e-5)


def test_one_signal_without_a_batch():
    weight = double(3, 2, 2)

    def function(x: Tensor) -> Tensor:
        return torch.stack([F.conv1d(one, weight, padding="same") for one in x])

    x = double(2, 2, 5)
    trace = record_function(function, x)
    assert sum(isinstance(entry.operation, Convolution) for entry in trace.entries) == 2
    assert torch.allclose(read_each(trace, None), find_jacobian(function, x))


def test_a_computed_grid_decides_and_gets_nothing():
    """Where to look is a choice, as a mask is: gradients know of it, and relevance does not."""

    def find_grid(x: Tensor) -> Tensor:
        return (x[:, :2, :2, :3] * 0.1).movedim(1, -1) + GRID * 0.8

    def function(x: Tensor) -> Tensor:
        return F.grid_sample(x, find_grid(x), align_corners=False)

    x = double(*IMAGE)
    trace = record_function(function, x)
    assert torch.allclose(read_each(trace, None), find_jacobian(function, x))
    held = find_grid(x)
    constant = find_jacobian(lambda x: F.grid_sample(x, held, align_corners=False), x)
    assert torch.allclose(read_each(trace, "attnlrp"), constant)
    assert torch.allclose(read_each(trace, "stable"), share_terms(constant, x, abs), atol=1e-9)


def test_a_model_that_looks_where_its_attention_says():
    """Samples at computed places are added to the residual stream, as deformable attention does."""

    class Looks(AttentionLayer):
        def forward(self, x: Tensor) -> Tensor:
            places = (x[..., :2] * 0.3).tanh()[:, :, None]
            looked = F.grid_sample(x.mT[..., None], places, align_corners=False)
            return super().forward(x + looked[..., 0].mT)

    gradients = read_everything(Looks())[1]
    plain = make_inputs().requires_grad_()
    (expected,) = torch.autograd.grad(Looks()(plain)[:, 0].sum(), plain)
    assert torch.allclose(gradients[0], expected)
    result = Explainer(Looks()).explain(make_inputs(), method="whence")
    assert result.scores.shape == (2, 5)


def test_a_grid_alone_gives_nothing_to_share():
    image = double(*IMAGE)
    trace = record_function(
        lambda x: F.grid_sample(image, x.tanh(), align_corners=False), double(2, 2, 3, 2)
    )
    with pytest.raises(NoRuleError, match="`grid_sample`"):
        read_each(trace, "stable")
