"""AttnLRP: balanced gradients that enter the softmax, against autograd with detached parts."""

import pytest
import torch
from torch import Tensor, nn

from tests.rules.helpers import propagate
from tests.tracing.helpers import record_inputs
from tests.tracing.ops.helpers import double
from whence import rules
from whence.rules.attnlrp import ATTNLRP
from whence.tracing import record
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import MatMul

WIDTH = 8


class Attention(nn.Module):
    """Attention with a skip connection; held, products of two factors give half to each."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 3)
        self.held = False

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.detach() @ b + a @ b.detach()) / 2 if self.held else a @ b

    def forward(self, x: Tensor) -> Tensor:
        scores = self.multiply(self.q(x), self.k(x).mT)
        return self.head((x + self.multiply(scores.softmax(-1), self.v(x)))[:, 0])


def test_gradients_are_those_of_autograd_with_halved_products():
    model = Attention().double()
    x = double(2, 5, WIDTH)
    trace = record_inputs(model, x)
    (ours,) = trace.read(torch.ones(2, 1, dtype=torch.long), trace.leaves, ATTNLRP)
    model.held = True
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert (ours[0] - expected).abs().max() < 1e-10 * expected.abs().max()


def test_values_pass_the_softmax_of_an_attention_as_gradients():
    softmax = Function("pass", lambda x: x.softmax(-1), mixed_dims=1, name="softmax")
    softmax.in_attention = True
    x = double(2, 3, 4)
    value, (ours,) = propagate(ATTNLRP, softmax, x)
    assert torch.allclose(ours, softmax.vjp(value)[0])
    _, (balanced,) = propagate("balanced", softmax, x)
    assert balanced is None


def test_products_in_attention_are_halved_too():
    for in_attention in (False, True):
        product = MatMul()
        product.in_attention = in_attention
        value, found = propagate(ATTNLRP, product, double(2, 3, 4), double(2, 4, 5))
        for ours, gradient in zip(found, product.gradient(value), strict=True):
            assert torch.allclose(ours, gradient / 2)


WEIGHTS = {
    "softmax of the chosen": lambda logits: logits.topk(2).values.softmax(-1),
    "divided by the sum": lambda logits: divide(logits.softmax(-1).topk(2).values),
    "with a constant": lambda logits: divide(logits.softmax(-1).topk(2).values, 1e-20),
    "at least": lambda logits: divide_at_least(logits.softmax(-1).topk(2).values),
    "in place": lambda logits: divide_in_place(logits.softmax(-1).topk(2).values),
    "of exponentials": lambda logits: divide(logits.exp().topk(2).values),
}


def divide(values: Tensor, constant: float = 0.0) -> Tensor:
    return values / (values.sum(-1, keepdim=True) + constant)


def divide_at_least(values: Tensor) -> Tensor:
    return values / torch.clamp(values.sum(-1, keepdim=True), min=1e-12)


def divide_in_place(values: Tensor) -> Tensor:
    values /= values.sum(-1, keepdim=True)
    return values


class Router(nn.Module):
    """Weights of the two experts of highest probability, as classes."""

    def __init__(self, choose) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.choose, self.router = choose, nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.choose(self.router(x))[:, 0]


@pytest.mark.parametrize("way", WEIGHTS)
def test_weights_of_chosen_experts_are_a_softmax(way):
    x = double(2, 3, WIDTH)
    model = Router(WEIGHTS[way]).double()
    trace = record(model, (x,), {}, 0, needs_attention=False)
    (ours,) = trace.read(torch.ones(2, 1, dtype=torch.long), trace.leaves, ATTNLRP)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert expected.abs().max() > 0
    assert (ours[0] - expected).abs().max() < 1e-10 * expected.abs().max()


def test_other_denominators_are_held():
    quotient = Function("quotient", torch.div)
    value, (numerator, denominator) = propagate(ATTNLRP, quotient, double(2, 3), double(2, 1))
    assert torch.allclose(numerator, value / quotient.inputs[1].detach())
    assert not denominator.any()


def test_the_set_has_a_name():
    assert rules.get("attnlrp") is ATTNLRP
