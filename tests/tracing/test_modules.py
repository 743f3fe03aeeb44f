"""Modules that are recorded as one operation: linear maps that hide their calls."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, WhenceError
from whence.tracing.modules import HiddenLinear
from whence.tracing.record import record

X = make_images(32, 32)


class LinearFunction(torch.autograd.Function):
    """A linear map that autograd sees as a whole, as bitsandbytes has it."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient @ ctx.weight, None, None


class FunctionLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return LinearFunction.apply(x, self.weight, self.bias)


class NumpyLinear(nn.Linear):
    """A linear map of which neither torch nor autograd sees anything."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.detach().numpy(), self.bias
        product = torch.from_numpy(x.detach().numpy() @ weight.T)
        return product if bias is None else product + bias.detach()


class Int8Linear(nn.Linear):
    """A linear map of inputs that are rounded to whole numbers, row by row."""

    def forward(self, x: Tensor) -> Tensor:
        step = x.detach().abs().amax(-1, keepdim=True).clamp_min(1e-9) / 127
        rounded = (x / step).round().to(torch.int8)
        return F.linear(rounded.to(x.dtype) * step, self.weight, self.bias)


class HiddenSquare(nn.Linear):
    """No linear map, whatever its class says."""

    def forward(self, x: Tensor) -> Tensor:
        return LinearFunction.apply(SquareFunction.apply(x), self.weight, self.bias)


class SquareFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


def replace_linear(model: nn.Module, kind: type[nn.Linear], only: str = "") -> nn.Module:
    """A model whose linear maps are of another class."""
    for name, module in model.named_modules():
        if type(module) is nn.Linear and only in name:
            module.__class__ = kind
    return model


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return HandWrittenViT().eval()


@pytest.mark.parametrize("kind", [FunctionLinear, NumpyLinear])
@pytest.mark.parametrize("method", ["tiba", "gae", "whence", "gradient", "lrp", "attnlrp"])
def test_hidden_linear_maps_are_recorded(kind, method):
    expected = Explainer(make_model()).explain(X, method=method)
    found = Explainer(replace_linear(make_model(), kind)).explain(X, method=method)
    assert torch.allclose(found.logits, expected.logits, atol=1e-6)
    assert torch.allclose(found.scores, expected.scores, rtol=1e-3, atol=1e-6)


def test_calls_inside_of_an_autograd_function_are_no_operations():
    plain = record(make_model(), (X,), {}, 0)
    hidden = record(replace_linear(make_model(), FunctionLinear), (X,), {}, 0)
    names = [entry.operation.kind for entry in plain.entries]
    assert [entry.operation.kind for entry in hidden.entries] == names
    assert any(isinstance(entry.operation, HiddenLinear) for entry in hidden.entries)
    assert all(entry.output.node is not None for entry in hidden.entries)


def test_a_module_that_is_not_linear_passes_gradients_alone():
    model = replace_linear(make_model(), HiddenSquare, only="head")
    pixels = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(pixels)[:, 0].sum(), pixels)
    trace = record(model, (X,), {}, 0)
    assert not any(isinstance(entry.operation, HiddenLinear) for entry in trace.entries)
    ours = trace.read(torch.zeros(len(X), 1, dtype=torch.long), trace.leaves)[0][0]
    assert torch.allclose(ours, gradient, atol=1e-6)
    with pytest.raises(WhenceError, match="Relevance cannot pass"):
        Explainer(model).explain(X, method="tiba")


def quantize(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("method", ["tiba", "whence", "gradient", "lrp"])
def test_dynamic_quantization(dtype, method):
    model = quantize(make_model(), dtype)
    found = Explainer(model).explain(X, target=0, method=method)
    with torch.no_grad():
        assert torch.allclose(found.logits, model(X), atol=1e-6)
    expected = Explainer(make_model()).explain(X, target=0, method=method)
    distance = (found.scores - expected.scores).norm() / expected.scores.norm()
    assert distance < 0.05
    assert found.scores.abs().sum() > 0


def test_linear_maps_that_round_their_input():
    expected = Explainer(make_model()).explain(X, target=0, method="tiba")
    found = Explainer(replace_linear(make_model(), Int8Linear)).explain(X, target=0, method="tiba")
    distance = (found.scores - expected.scores).norm() / expected.scores.norm()
    assert 0 < distance < 0.05


def test_whole_numbers_of_eight_bits_elsewhere_are_refused():
    class Rounds(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward((image * 50).to(torch.int8).float() / 50 + image * 0)

    with pytest.raises(WhenceError, match=r"`to`, called in .* computes without gradients"):
        Explainer(Rounds()).explain(X)


def test_calls_without_gradients_are_refused():
    class Quantizes(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                coarse = torch.quantize_per_tensor(image, 0.1, 0, torch.qint8).dequantize()
            return super().forward(image) + coarse.mean((1, 2, 3))[:, None]

    with pytest.raises(WhenceError, match=r"`quantize_per_tensor`, called in .* without gradients"):
        Explainer(Quantizes()).explain(X)


def test_constants_made_in_the_likeness_of_traced_tensors_are_none_of_these():
    class Pads(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            zeros = torch.zeros_like(image) + image.new_ones(1) - torch.rand_like(image.detach())
            return super().forward(image) + (zeros * 0).sum() + image.detach().mean() * 0

    assert Explainer(Pads()).explain(X).scores.isfinite().all()
