"""Addresses of operations stay the same where the number of operations depends on values."""

import torch
from torch import nn

from tests.tracing.attention_model import WIDTH, AttentionLayer, make_inputs
from whence.tracing import Edit, Intervention, record
from whence.tracing.addresses import Address


class ByValue(nn.Module):
    """A part that computes more for some inputs than for others."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x):
        return self.map(x).tanh() if x.sum() > 0 else x * 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by_value = ByValue()
        self.layer = AttentionLayer()

    def forward(self, x):
        return self.layer(self.by_value(x))


def test_an_edit_meets_its_operation_whatever_else_is_computed():
    torch.manual_seed(0)
    model, x = Model(), make_inputs().abs()
    traces = [record(model, (one,), {}, 0) for one in (x, -x)]
    many, few = (len(trace.entries) for trace in traces)
    assert many == few + 1
    addresses = traces[0].rerecord(Intervention(finds_addresses=True)).addresses
    assert len(addresses) == many
    paths = [("by_value", 0), ("by_value.map", 0), ("by_value", 1), ("layer", 0)]
    assert addresses[:4] == [Address(*path) for path in paths]
    halved = {addresses[-1]: Edit(output=lambda logits: logits / 2)}
    for one in (x, -x):
        edited = record(model, (one,), {}, 0, None, Intervention(edits=halved))
        assert torch.allclose(edited.logits, model(one) / 2)
