"""Norms by formulas, against autograd through the module, with the spread held or not."""

import pytest
import torch
from torch import Tensor, nn

from whence._util.torch_norms import read_norm
from whence.rules.balanced import _hold_spread
from whence.tracing.ops.function import Function
from whence.tracing.ops.norms import Norm

WIDTH = 8


class ByHand(nn.Module):
    """RMSNorm as models spell it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class OnePlusWeight(ByHand):
    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)
        return (wide * (1 + self.weight.to(wide.dtype))).to(x.dtype)


class Divided(ByHand):
    def forward(self, x):
        return x / x.pow(2).mean(-1, keepdim=True).sqrt() * self.weight


class ScaledBefore(ByHand):
    def forward(self, x):
        x = x * 3
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.weight


class WidenedSpread(ByHand):
    def forward(self, x):
        return x * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True)).to(x.dtype)


class Centred(ByHand):
    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.weight


class MeanOfOther(ByHand):
    def forward(self, x):
        return x * torch.rsqrt((x * 2).pow(2).mean(-1, keepdim=True) + 1e-6)


class OverTokens(ByHand):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True))


class ManySpreads(ByHand):
    """What is added to the mean is another number for each element, and so is the spread."""

    def forward(self, x):
        eps = torch.linspace(0.1, 2, WIDTH, dtype=x.dtype)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


# How it is proven: its plain gradient too, the held one alone, or not at all.
PLAIN, HELD, NOT = "plain", "held", "not"
CASES = {
    ByHand: PLAIN,
    OnePlusWeight: PLAIN,
    OverTokens: PLAIN,
    Divided: HELD,
    ScaledBefore: HELD,
    WidenedSpread: HELD,
    MeanOfOther: HELD,
    ManySpreads: HELD,
    Centred: NOT,
}
TYPES = [torch.float64, torch.float32, torch.bfloat16]


def make(of: type[ByHand], dtype: torch.dtype) -> tuple[Norm, Function, Tensor, Tensor]:
    module = of().to(dtype)
    x, gradient = torch.randn(2, 2, 3, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    norm, plain = (kind("pass", module, name="ANorm") for kind in (Norm, Function))
    norm.forward(x)
    plain.forward(x)
    return norm, plain, x, gradient


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("of", CASES)
def test_gradients_are_those_of_autograd(of: type[ByHand], dtype: torch.dtype) -> None:
    norm, plain, _, gradient = make(of, dtype)
    found, expected = norm.vjp(gradient)[0], plain.vjp(gradient)[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(norm.output, plain.output, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("of", CASES)
def test_held_gradients_are_those_of_the_norm_run_again(
    of: type[ByHand], dtype: torch.dtype
) -> None:
    norm, plain, _, gradient = make(of, dtype)
    found, expected = _hold_spread(norm, gradient)[0], _hold_spread(plain, gradient)[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("of", "proof"), CASES.items())
def test_what_is_proven(of: type[ByHand], proof: str) -> None:
    norm, _, x, gradient = make(of, torch.float32)
    assert (norm.hold_spread(gradient) is not None) == (proof != NOT)
    leaf = x.requires_grad_()
    found = read_norm(norm.function(leaf), leaf)
    assert (found is not None and bool(found[0].mean_dims)) == (proof == PLAIN)
    assert norm.keeps_graph == (proof != PLAIN)


@pytest.mark.parametrize("of", [ByHand, OnePlusWeight])
def test_classes_may_come_first(of: type[ByHand]) -> None:
    norm, _, _, gradient = make(of, torch.float64)
    several = torch.stack([gradient, gradient * 2, gradient.flip(0)])
    for read in (norm.hold_spread, lambda g: norm.vjp(g)[0]):
        torch.testing.assert_close(read(several), torch.stack([read(one) for one in several]))


def test_other_shapes_are_no_norm() -> None:
    x = torch.randn(2, 1, WIDTH, requires_grad=True)
    spread = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
    assert read_norm((x * spread).flatten(), x) is None
    assert read_norm(x * spread * torch.ones(2, 3, WIDTH), x) is None
    assert read_norm(x * spread * spread, x) is None
    assert read_norm(x * 2, x) is None


def test_what_is_overwritten_is_copied() -> None:
    norm, plain, x, gradient = make(ByHand, torch.float64)
    expected = plain.vjp(gradient)[0]
    norm.preserve(x)
    x.zero_()
    torch.testing.assert_close(norm.vjp(gradient)[0], expected)
    assert norm.hold_spread(gradient) is not None


@pytest.mark.parametrize("of", CASES)
def test_without_a_graph_gradients_are_the_same(of: type[ByHand]) -> None:
    norm, plain, x, gradient = make(of, torch.float64)
    norm.keeps_graph = False
    norm.forward(x)
    assert not norm.inputs[0].requires_grad
    torch.testing.assert_close(norm.vjp(gradient)[0], plain.vjp(gradient)[0])
    torch.testing.assert_close(_hold_spread(norm, gradient)[0], _hold_spread(plain, gradient)[0])
