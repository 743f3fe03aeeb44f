"""The node of attention in one kernel, against autograd's engine."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from whence._util.torch_attention import is_fused_attention, run_attention_node

SHAPE = (2, 3, 5, 8)


def draw() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_the_engine(is_causal: bool) -> None:
    inputs = [draw(), draw(), draw()]
    output = F.scaled_dot_product_attention(*inputs, is_causal=is_causal)
    gradient = torch.linspace(-1, 1, output.numel()).reshape(SHAPE)
    expected = torch.autograd.grad(output, inputs, gradient, retain_graph=True)
    found = run_attention_node(output, inputs, gradient)
    assert is_fused_attention(output.grad_fn)
    assert found is not None
    assert not any(one.requires_grad for one in found)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_other_graphs_are_for_the_engine() -> None:
    inputs = [draw(), draw(), draw()]
    gradient = torch.ones(SHAPE)
    with sdpa_kernel(SDPBackend.MATH):
        assert run_attention_node(F.scaled_dot_product_attention(*inputs), inputs, gradient) is None
    moved = F.scaled_dot_product_attention(*(x * 2 for x in inputs))
    assert run_attention_node(moved, inputs, gradient) is None
    assert run_attention_node(torch.ones(SHAPE), inputs, gradient) is None
    one = inputs[0]
    assert (
        run_attention_node(F.scaled_dot_product_attention(one, one, one), inputs, gradient) is None
    )
