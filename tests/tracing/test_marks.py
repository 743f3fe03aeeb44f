"""Marks that pass one call each, compared with the gradients of random instances."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.tracing.recorders.definitions import double, find_jacobian, record_function
from whence.tracing.mark_walk import MarkWalk
from whence.tracing.marks import add_marks, compact, mark_all, mark_any, sum_marks, to_marks
from whence.tracing.recording import edge_of

IMAGE, SIGNAL, VIDEO = (2, 4, 5, 6), (2, 4, 7), (1, 2, 3, 4, 4)
GENERATOR = torch.Generator().manual_seed(11)


def constant(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).double()


GRID = torch.rand(2, 2, 3, 2, generator=GENERATOR).double() * 2.2 - 1.1
SPARSE = constant(7, 5) * (torch.rand(7, 5, generator=GENERATOR) > 0.5)
KERNEL, SPREAD = constant(4, 4, 3, 2), constant(4, 3, 2, 2)
BY_CHANNEL, BY_TWO = constant(4, 1, 3, 3), constant(6, 2, 3, 3)

FREE = {"align_corners": False}

CALLS = {
    "convolution": (lambda x: F.conv2d(x, KERNEL, stride=2, padding=1), IMAGE),
    "dilated": (lambda x: F.conv2d(x, KERNEL, dilation=2), IMAGE),
    "depthwise": (lambda x: F.conv2d(x, BY_CHANNEL, padding=1, groups=4), IMAGE),
    "grouped": (lambda x: F.conv2d(x, BY_TWO, stride=2, groups=2), IMAGE),
    "transposed": (lambda x: F.conv_transpose2d(x, SPREAD, stride=2, padding=1), IMAGE),
    "transposed, apart": (
        lambda x: F.conv_transpose2d(x, SPREAD[:, :2], stride=3, groups=2),
        IMAGE,
    ),
    "transposed signal": (
        lambda x: F.conv_transpose1d(x, KERNEL[..., 0], stride=2, output_padding=1),
        SIGNAL,
    ),
    "average": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "average of a signal": (lambda x: F.avg_pool1d(x, 2), SIGNAL),
    "average of a video": (lambda x: F.avg_pool3d(x, 2), VIDEO),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMAGE),
    "adaptive signal": (lambda x: F.adaptive_avg_pool1d(x, 3), SIGNAL),
    "all": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, size=(7, 4), mode="bilinear"), IMAGE),
    "corners": (lambda x: F.interpolate(x, size=9, mode="bilinear", align_corners=True), IMAGE),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), IMAGE),
    "antialias": (lambda x: F.interpolate(x, size=3, mode="bilinear", antialias=True), IMAGE),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), VIDEO),
    "area": (lambda x: F.interpolate(x, size=(2, 4), mode="area"), IMAGE),
    "grid": (lambda x: F.grid_sample(x, GRID, align_corners=False), IMAGE),
    "bicubic grid": (lambda x: F.grid_sample(x, GRID, "bicubic", align_corners=False), IMAGE),
    "computed grid": (
        lambda x: F.grid_sample(x, GRID * 0.7 + x[:, :2, :2, :3].movedim(1, -1) * 0.1, **FREE),
        IMAGE,
    ),
    "unfold": (lambda x: F.unfold(x, 3, padding=1, stride=2), IMAGE),
    "fold": (lambda x: F.fold(x.reshape(2, 8, 15), (4, 6), 2), (2, 120)),
    "windows of a tensor": (lambda x: x.unfold(2, 3, 2), IMAGE),
    "rolled": (lambda x: x.roll((1, -2), (2, 3)), IMAGE),
    "flipped": (lambda x: x.flip(2), IMAGE),
    "padded": (lambda x: F.pad(x, (1, 2, 0, 1)), IMAGE),
    "reflected": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), IMAGE),
    "circular": (lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"), IMAGE),
    "cropped": (lambda x: F.pad(x, (-1, 1)), IMAGE),
    "pixels from channels": (lambda x: F.pixel_shuffle(x, 2), IMAGE),
    "pixels to channels": (lambda x: F.pixel_unshuffle(x[:, :, :4], 2), IMAGE),
    "windows": (
        lambda x: x[:, :, :4].reshape(2, 4, 2, 2, 3, 2).permute(0, 2, 4, 3, 5, 1).flatten(1, 2),
        IMAGE,
    ),
    "merged": (lambda x: torch.cat([x[:, :, 0:4:2], x[:, :, 1:4:2]], 1), IMAGE),
    "sum": (lambda x: x.sum((2, 3)), IMAGE),
    "running sum": (lambda x: x.cumsum(2), IMAGE),
    "softmax": (lambda x: x.softmax(-1), SIGNAL),
    "softmax over channels": (lambda x: x.softmax(1), IMAGE),
    "log-softmax over rows": (lambda x: F.log_softmax(x, 2), IMAGE),
    "norm of channels": (lambda x: x.norm(dim=1), IMAGE),
    "norm of places": (lambda x: x.norm(dim=(2, 3), keepdim=True), IMAGE),
    "matrix": (lambda x: x @ SPARSE.abs().add(1), SIGNAL),
    "matrix with zeros": (lambda x: x @ SPARSE, SIGNAL),
    "matrix from the left": (lambda x: KERNEL[0, :, :, 0].mT @ x, SIGNAL),
    "einsum": (lambda x: torch.einsum("bct,td->bdc", x, SPARSE), SIGNAL),
    "einsum of windows": (lambda x: torch.einsum("bcij,cjk->bki", x, constant(4, 6, 2)), IMAGE),
    "product with itself": (lambda x: x @ x.mT, SIGNAL),
    "product": (lambda x: x[:, :, :, 3:] * x[:, :1, :, :3], IMAGE),
    "activation by hand": (lambda x: x * torch.sigmoid(1.7 * x), IMAGE),
    "scaled": (lambda x: 0.5 * x, IMAGE),
    "masked": (lambda x: x * (SPARSE[:, 0] != 0), SIGNAL),
    "scattered": (
        lambda x: x.new_zeros(2, 4, 3).scatter_add(
            2, torch.tensor([0, 1, 1, 2, 0, 2, 2]).expand(2, 4, 7), x
        ),
        SIGNAL,
    ),
    "soft maximum": (lambda x: x.logsumexp((1, 2)), IMAGE),
}
# What of all that it may choose from is chosen, only many instances tell.
CHOICES = {
    "greatest in windows": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "dilated windows": (lambda x: F.max_pool2d(x, 2, 1, 0, 2), IMAGE),
    "greatest of a signal": (lambda x: F.max_pool1d(x, 3, 2), SIGNAL),
    "greatest of a video": (lambda x: F.max_pool3d(x, 2), VIDEO),
    "adaptive": (lambda x: F.adaptive_max_pool2d(x, (2, 4)), IMAGE),
    "adaptive signal": (lambda x: F.adaptive_max_pool1d(x, 3), SIGNAL),
    "adaptive video": (lambda x: F.adaptive_max_pool3d(x, 2), VIDEO),
    "maximum": (lambda x: x.max(1)[0], SIGNAL),
    "minimum, kept": (lambda x: x.min(-1, keepdim=True)[0], SIGNAL),
    "maximum of several": (lambda x: x.amax((1, 2))[:, None], (2, 2, 3)),
    "both": (lambda x: torch.cat(torch.aminmax(x, dim=2), -1), SIGNAL),
    "median": (lambda x: x.median(1)[0], SIGNAL),
    "second": (lambda x: x.kthvalue(2, 2)[0], SIGNAL),
    "running": (lambda x: x.cummax(2)[0], SIGNAL),
    "of two": (lambda x: torch.maximum(x, x.flip(-1)), SIGNAL),
    "of two, broadcast": (lambda x: torch.fmin(x, x[:, :1]), SIGNAL),
}


def find_marks(function, x: Tensor) -> Tensor:
    """Marks of what each output is made of, (outputs, batch, elements), all at once."""
    trace = record_function(function, x)
    walk = MarkWalk(trace)
    edge = edge_of(trace.logits)
    outputs = trace.logits.shape[1]
    seed = torch.eye(outputs, dtype=x.dtype)[:, None].expand(outputs, *trace.logits.shape)
    with torch.no_grad():
        (found,) = walk.run(edge, seed, [edge_of(trace.leaves[0])])
    assert found.shape == (outputs, *x.shape)
    return (found > 0).flatten(2)


@pytest.mark.parametrize("name", CALLS)
def test_marks_are_where_gradients_are(name):
    function, shape = CALLS[name]
    x = double(*shape)
    assert torch.equal(find_marks(function, x), find_jacobian(function, x).abs() > 1e-9)


@pytest.mark.parametrize("name", CHOICES)
def test_all_that_may_be_chosen_is_marked(name):
    function, shape = CHOICES[name]
    instances = find_jacobian(function, double(60, *shape[1:])) != 0
    expected = instances.any(1, keepdim=True).expand(-1, shape[0], -1)
    assert torch.equal(find_marks(function, double(*shape)), expected)


def test_the_spread_of_a_norm_is_left_out():
    """A token does not stand for the statistics that it is divided by."""

    def divide(x: Tensor) -> Tensor:
        centred = x - x.mean((2, 3), keepdim=True)
        return centred / centred.std((2, 3), keepdim=True)

    found = find_marks(divide, double(*IMAGE))
    assert torch.equal(found, torch.eye(120).bool()[:, None].expand(120, 2, 120))


WIDE = {
    "convolution": lambda x: F.conv2d(x, KERNEL, stride=2, padding=1),
    "transposed": lambda x: F.conv_transpose2d(x, SPREAD, stride=2, padding=1),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "average": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
    "greatest": lambda x: F.max_pool2d(x, 2),
    "adaptive greatest": lambda x: F.adaptive_max_pool2d(x, 2),
    "scaled": lambda x: 2 * x,
    "added": lambda x: x.sin() + x.mean(1, keepdim=True).cos(),
}


@pytest.mark.parametrize("name", WIDE)
def test_channels_that_are_marked_alike_stay_expanded(name):
    """Their marks take no memory of their own."""
    x = double(*IMAGE)
    trace = record_function(lambda x: WIDE[name](x).sum(1), x)
    output = trace.entries[-1].inputs[0]
    shape = tuple(trace.entries[-1].operation.inputs[0].shape)
    seed = (torch.rand(3, 1, 1, *shape[2:]) > 0.5).double().expand(3, *shape)
    with torch.no_grad():
        (found,) = MarkWalk(trace).run(output, seed, [edge_of(trace.leaves[0])])
    assert found.stride()[1:3] == (0, 0)
    alone = seed.clone()
    with torch.no_grad():
        (expected,) = MarkWalk(trace).run(output, alone, [edge_of(trace.leaves[0])])
    assert torch.equal(found > 0, expected > 0)


def test_marks_that_are_expanded():
    marks = torch.tensor([[1.0, 0, 2], [0, 0, 1]])[:, None, :, None].expand(2, 4, 3, 5)
    assert compact(marks).shape == (2, 1, 3, 1)
    assert to_marks(marks)[:, 3, :, 2].tolist() == [[1, 0, 1], [0, 0, 1]]
    assert add_marks(marks, marks).stride() == to_marks(marks).stride()
    assert mark_any(marks, 2).shape == (2, 4, 1, 5)
    assert sum_marks(marks, torch.Size((3, 1)))[:, :, 0].tolist() == [[1, 0, 2], [0, 0, 1]]
    assert mark_all(marks, torch.Size((4, 6)), 4).shape == (2, 4, 6)
