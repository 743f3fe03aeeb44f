"""Products with constants, however they are written: one operation, with torch's own gradient."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.recorders.definitions import double, find_jacobian, read_each, record_function
from whence.tracing.graph.nodes import is_scaling
from whence.tracing.ops.function import Function
from whence.tracing.ops.scaling import Product, Scaling

SHAPE = (2, 3, 4)
ROWS = torch.linspace(0.5, 2, 12, dtype=torch.float64).reshape(3, 4)
PARAMETER = nn.Parameter(ROWS.clone())

SCALINGS = {
    "number": lambda x: x * 2.5,
    "whole number": lambda x: x * 3,
    "number first": lambda x: 3 * x,
    "constant": lambda x: x * ROWS,
    "constant first": lambda x: ROWS * x,
    "parameter": lambda x: x * PARAMETER,
    "narrower type": lambda x: x * ROWS.float(),
    "wider constant": lambda x: x.unsqueeze(1) * torch.stack([ROWS, -ROWS]),
    "by keyword": lambda x: torch.mul(x, other=ROWS),
    "in place": lambda x: x.clone().mul_(ROWS),
    "quotient": lambda x: x / ROWS,
    "quotient by a number": lambda x: torch.div(x, 3),
    "negative": lambda x: -x,
    "negative by name": lambda x: torch.negative(input=x),
    "whole numbers": lambda x: x * torch.arange(1, 5),
}
PRODUCTS = {
    "product": lambda x: x.sin() * x.cos(),
    "of other shapes": lambda x: x.sin() * x[:, :1].cos(),
    "by keyword": lambda x: torch.mul(input=x.sin(), other=x.cos()),
    "in place": lambda x: x.sin().mul_(x.cos()),
    "gate": lambda x: x * torch.sigmoid(x),
    "reciprocal": lambda x: x * (1 / (x.square() + 1)),
}


def test_a_constant_may_be_overwritten() -> None:
    def scale(x: Tensor) -> Tensor:
        factor = ROWS.clone()
        y = x * factor
        factor.zero_()
        return y

    x = double(*SHAPE)
    found = read_each(record_function(scale, x), None)
    torch.testing.assert_close(found, find_jacobian(SCALINGS["constant"], x))


@pytest.mark.parametrize("name", [*SCALINGS, *PRODUCTS])
def test_gradients_are_those_of_torch(name: str) -> None:
    for cases in (SCALINGS, PRODUCTS):
        if name in cases:
            x = double(*SHAPE)
            trace = record_function(cases[name], x)
            torch.testing.assert_close(read_each(trace, None), find_jacobian(cases[name], x))


@pytest.mark.parametrize("name", SCALINGS)
def test_relevance_passes_a_scaling_as_it_is(name: str) -> None:
    x = double(*SHAPE)
    trace = record_function(SCALINGS[name], x)
    expected = (find_jacobian(SCALINGS[name], x) != 0).to(x.dtype)
    torch.testing.assert_close(read_each(trace, "stable"), expected)


@pytest.mark.parametrize("name", ["number", "constant", "parameter", "quotient", "in place"])
def test_a_scaling_is_known_as_one(name: str) -> None:
    operations = [
        entry.operation for entry in record_function(SCALINGS[name], double(*SHAPE)).entries
    ]
    assert [type(one) for one in operations] == [Scaling]
    assert is_scaling(operations[0])


def test_kinds_of_products() -> None:
    for name, function in PRODUCTS.items():
        *_, last = record_function(function, double(*SHAPE)).entries
        assert isinstance(last.operation, Product) == (name != "by keyword"), name
        expected = "quotient" if name in ("gate", "reciprocal") else "product"
        assert last.operation.kind == expected, name


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (nn.SiLU(), F.silu),
        (nn.SiLU(inplace=True), F.silu),
        (nn.GELU(), F.gelu),
        (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_activations_as_modules_are_those_of_functions(module, function) -> None:
    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = module

        def forward(self, x: Tensor) -> Tensor:
            return self.activation(x.clone())

    x = double(*SHAPE)
    model = Calling().eval()
    traces = record_function(model, x), record_function(function, x)
    for rules in (None, "stable", "balanced"):
        found, expected = (read_each(trace, rules) for trace in traces)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    names = [[entry.operation.name for entry in trace.entries] for trace in traces]
    assert names[0] == names[1]
    assert isinstance(traces[0].entries[-1].operation, Function)


@pytest.mark.parametrize("call", [torch.neg, lambda x, out: torch.add(x, x.sin(), out=out)])
def test_results_that_are_written_elsewhere_are_refused(call) -> None:
    """Torch does not follow them, and neither does whence."""

    def compute(x: Tensor) -> Tensor:
        written = torch.zeros_like(x).detach()
        call(x * 2, out=written)
        return x + written

    with pytest.raises(RuntimeError, match="out="):
        record_function(compute, torch.randn(2, 3, dtype=torch.float64))
