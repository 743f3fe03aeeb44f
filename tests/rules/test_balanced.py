"""Balanced gradients, against autograd through models that hold the same things by .detach()."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.helpers import record_inputs
from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import rules
from whence.rules.balanced import BALANCED

WIDTH, HEADS, TOKENS = 16, 4, 6


def read_balanced(model: nn.Module, x: Tensor, target: int = 0) -> Tensor:
    trace = record_inputs(model, x)
    classes = torch.full((len(x), 1), target)
    return trace.read(classes, trace.leaves, BALANCED)[0][0]


# Each module computes as a model has it or, while it is held, with constants detached: one set of
# weights serves both.


class Holding(nn.Module):
    """Part of a model that detaches what the rules take as constant, while it is held."""

    held = False

    def hold(self, x: Tensor) -> Tensor:
        return x.detach() if self.held else x


class Norm(Holding):
    """LayerNorm, by torch's function or, held, by its parts."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x):
        if not self.held:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        centred = x - x.mean(-1, keepdim=True)
        spread = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        return centred / spread * self.weight + self.bias


class Activation(Holding):
    def __init__(self, function=F.gelu) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return x * (self.function(x) / x).detach() if self.held else self.function(x)


class Attention(Holding):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.fused and not self.held:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            self.map = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            if self.held:
                self.map = self.map.detach().requires_grad_()
            mixed = self.map @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, fused: bool, norm_first: bool, function=F.gelu) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm1, self.norm2 = Norm(), Norm()
        self.attention = Attention(fused)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), Activation(function), nn.Linear(24, WIDTH))

    def forward(self, x):
        if self.norm_first:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class ViT(nn.Module):
    """Patches by a convolution, a class token, norms before attention."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.class_token = nn.Parameter(torch.randn(WIDTH))
        self.positions = nn.Parameter(torch.randn(5, WIDTH))
        self.blocks = nn.Sequential(*(Block(fused, True) for _ in range(2)))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, 3)

    def forward(self, pixels):
        x = self.embed(pixels).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bert(nn.Module):
    """Embeddings in, norms after sums, a pooler with tanh."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.norm = Norm()
        self.blocks = nn.Sequential(*(Block(fused, False) for _ in range(2)))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.tanh = Activation(torch.tanh)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, embeddings):
        x = self.blocks(self.norm(embeddings))
        return self.head(self.tanh(self.pooler(x[:, 0])))


def hold(model: nn.Module, held: bool = True) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Holding):
            module.held = held
    return model


def example(kind: type[nn.Module], fused: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    shape = (2, 3, 8, 8) if kind is ViT else (2, TOKENS, WIDTH)
    return kind(fused).double(), torch.randn(*shape, dtype=torch.float64)


def read_by_autograd(model: nn.Module, x: Tensor, target: int = 0) -> Tensor:
    x = x.clone().requires_grad_()
    hold(model)(x)[:, target].sum().backward()
    hold(model, False)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [ViT, Bert])
@pytest.mark.parametrize("target", [0, 2])
def test_equal_to_autograd_with_detached_parts(kind, fused, target):
    model, x = example(kind, fused)
    expected = read_by_autograd(model, x, target)
    ours = read_balanced(model, x, target)
    assert (ours - expected).abs().max() < 1e-10 * expected.abs().max()
    plain = record_inputs(model, x)
    leaves = [place.leaf for place in plain.inputs]
    other = plain.read(torch.full((2, 1), target), leaves)[0][0]
    assert (other - expected).abs().max() > 1e-2 * expected.abs().max()


@pytest.mark.parametrize("kind", [ViT, Bert])
def test_values_times_gradients_sum_to_the_logit(kind):
    """The input, and every bias, each times its gradient, give the logit."""
    model, x = example(kind, True)
    added = [
        parameter
        for name, parameter in model.named_parameters()
        if name.endswith(("bias", "class_token", "positions"))
    ]
    for i in range(len(x)):
        ours = (read_balanced(model, x[i : i + 1]) * x[i : i + 1]).sum()
        logit = hold(model)(x[i : i + 1])[0, 0]
        shares = [
            (value * gradient).sum()
            for value, gradient in zip(added, torch.autograd.grad(logit, added), strict=True)
        ]
        hold(model, False)
        assert torch.allclose(model(x[i : i + 1])[0, 0], logit, rtol=1e-12)
        assert abs(ours + sum(shares) - logit) < 1e-10 * abs(logit)


class Around(nn.Module):
    """An attention, so that there is one, and some module downstream of it."""

    def __init__(self, module: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.attention, self.module, self.head = Attention(True), module, nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.module(x + self.attention(x))[:, 0])


class SwiGlu(Holding):
    """Both factors of the product depend on the input: each gets half of the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.silu = Activation(F.silu)

    def forward(self, x):
        gate, up = self.silu(self.gate(x)), self.up(x)
        return gate * up if not self.held else (gate.detach() * up + gate * up.detach()) / 2


class MyRMSNorm(Holding):
    """Written out in the model; known as a whole by the name of its class."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        size = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (x * self.hold(size))


class TorchRms(Holding):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        if not self.held:
            return self.norm(x)
        size = (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt().detach()
        return x / size * self.norm.weight


@pytest.mark.parametrize(
    "make",
    [
        SwiGlu,
        MyRMSNorm,
        TorchRms,
        Norm,
        lambda: Activation(F.relu),
        lambda: Activation(F.silu),
        lambda: Activation(torch.tanh),
        lambda: Activation(F.mish),
        lambda: Activation(lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_single_modules(make):
    torch.manual_seed(5)
    model = Around(make()).double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    expected = read_by_autograd(model, x)
    assert (read_balanced(model, x) - expected).abs().max() < 1e-10 * expected.abs().max()


@pytest.mark.parametrize(("function", "slope"), [(F.gelu, 0.5), (F.silu, 0.5), (torch.tanh, 1.0)])
def test_the_slope_of_an_activation_at_zero(function, slope):
    class AtZero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.around = Around(nn.Identity())

        def forward(self, x):
            return self.around(x) + function(x[:, 0, :3])

    model = AtZero().double()
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    x[:, 0, 0] = 0
    difference = read_balanced(model, x) - read_by_autograd(model.around, x)
    assert abs(difference[0, 0, 0] - slope) < 1e-12
    assert difference[0, 1:].abs().max() < 1e-12


@pytest.mark.parametrize("kind", [ViT, Bert])
def test_gradients_at_attention_maps_are_still_read(kind):
    model, x = example(kind, True)
    read_by_autograd(model, x)
    trace = record_inputs(model, x)
    ours = trace.read(torch.zeros(2, 1).long(), [s.weights for s in trace.sites], BALANCED)
    assert len(ours) == 2
    for block, gradient in zip(model.blocks, ours, strict=True):
        expected = block.attention.map.grad
        assert (gradient[0] - expected).abs().max() < 1e-10 * expected.abs().max()


def test_nothing_comes_through_the_softmax():
    trace = record_inputs(HandWrittenViT().double(), make_images(32, 32).double())
    softmax = next(entry for entry in trace.entries if entry.operation.name == "softmax")
    classes = torch.zeros(3, 1, dtype=torch.long)
    assert trace.read(classes, [softmax.inputs[0]], BALANCED)[0].abs().max() == 0
    assert trace.read(classes, [softmax.inputs[0]])[0].abs().max() > 0


@pytest.mark.parametrize("name", ["timm-vit-fused", "Bert-sdpa", "Albert-sdpa", "torchvision-vit"])
def test_balanced_gradients_of_several_classes(name):
    model, inputs = build_model(CASES[name]), CASES[name].inputs()
    trace = record_inputs(model, inputs)
    classes = torch.tensor([[0, 2]]).expand(3, 2)
    both = trace.read(classes, trace.leaves, BALANCED)[0]
    for n in (0, 1):
        one = trace.read(classes[:, n : n + 1], trace.leaves, BALANCED)[0]
        assert torch.allclose(both[n : n + 1], one, rtol=1e-4, atol=1e-6 * float(one.abs().max()))


def test_the_set_has_a_name():
    assert rules.get("balanced") is BALANCED
