"""Computations recorded as graphs: in-place writes, gradients, constants, shapes."""

import pytest
import torch
from torch import fx, nn

from whence._util.torch_internals import unflatten_tree
from whence.engine.compiled.graph import record_graph


def run(compute, example, inputs):
    """Record a computation with example inputs and run its graph on others."""
    graph, constants, structure = record_graph(compute, example)
    return unflatten_tree(fx.GraphModule({}, graph)(*inputs, *constants), structure)


def test_in_place_writes_reach_all_views_but_not_the_input():
    def compute(x):
        x = x.clone()
        y = x[0]
        y.mul_(3)
        x.add_(1)
        return x * 2, y

    x = torch.randn(2, 3)
    before = x.clone()
    assert all(map(torch.equal, run(compute, [torch.ones(2, 3)], [x]), compute(x)))
    assert torch.equal(x, before)


def test_strides_may_differ_from_those_of_an_in_place_write():
    def compute(x, y):
        x = x.clone().mul_(y)  # has the strides of x; out of place it may have those of y
        return x.view(-1) * 2

    inputs = [torch.randn(3, 4), torch.randn(4, 3).T]
    assert torch.equal(run(compute, inputs, inputs), compute(*inputs))


def test_gradients_are_recorded():
    def compute(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(leaf.pow(3).sum(), leaf)
        return {"gradient": gradient, "value": x}

    x = torch.randn(4)
    found = run(compute, [torch.randn(4)], [x])
    assert torch.allclose(found["gradient"], 3 * x**2)
    assert found["value"] is x


def test_weights_become_inputs_and_are_shared():
    layer = nn.Linear(3, 3)
    recorded = record_graph(nn.Sequential(layer, layer), [torch.randn(2, 3)])
    places = {constant.data_ptr() for constant in recorded.constants}
    assert places == {layer.weight.data_ptr(), layer.bias.data_ptr()}
    assert not recorded.graph.find_nodes(op="get_attr")


@pytest.mark.parametrize("select", [torch.nonzero, lambda x: x[x > 0]], ids=["nonzero", "mask"])
def test_shapes_that_depend_on_values_are_refused(select):
    with pytest.raises(RuntimeError, match="depends on values"):
        record_graph(select, [torch.ones(3)])


def test_an_index_of_numbers_has_a_static_shape():
    x, index = torch.randn(4), torch.tensor([2, 0])
    assert torch.equal(run(lambda x, i: x[i], [x, index], [x, index.flip(0)]), x[[0, 2]])
