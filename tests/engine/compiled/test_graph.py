"""Computations recorded as graphs: in-place writes, gradients, constants, shapes."""

import pytest
import torch
from torch import fx, nn

from whence._util.torch_internals import flatten_tree, unflatten_tree
from whence._util.torch_operators import list_written
from whence.engine.compiled.graph import record_graph, write_nothing_in_place


def run(compute, example, inputs):
    """Record a computation with example inputs and run its graph on others, in both forms."""
    recorded = record_graph(compute, example)
    found = run_graph(recorded, inputs)
    functional = write_nothing_in_place(recorded, example)
    assert not list_written(functional.graph)
    pairs = zip(flatten_tree(found)[0], flatten_tree(run_graph(functional, inputs))[0], strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    return found


def run_graph(recorded, inputs):
    graph, constants, structure = recorded
    return unflatten_tree(fx.GraphModule({}, graph)(*inputs, *constants), structure)


def test_shapes_change_in_any_order_of_memory():
    """Torch's compiler may give a tensor another order than an operator by itself does."""
    example, other = [torch.randn(2, 3)], torch.randn(3, 2).T
    recorded = record_graph(lambda x: [(x * 2).view(6)], example)
    (found,) = run_graph(write_nothing_in_place(recorded, example), [other])
    assert torch.equal(found, (other * 2).reshape(6))


@pytest.mark.parametrize("of", ["input", "constant"])
def test_writes_to_what_outlives_a_run_are_refused(of):
    constant = torch.ones(2, 3)

    def compute(x):
        written = constant if of == "constant" else x
        written[0].add_(x[1].clone())
        return written * 1

    with pytest.raises(RuntimeError, match="written to a tensor that outlives the computation"):
        record_graph(compute, [torch.zeros(2, 3)])


def test_writes_to_tensors_of_its_own_stay_as_they_are():
    def compute(x):
        y = x * 2
        y[0].mul_(3)
        return y

    recorded = record_graph(compute, [torch.ones(2, 3)])
    assert list_written(recorded.graph)
    x = torch.randn(2, 3)
    assert torch.equal(run_graph(recorded, [x]), compute(x))


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
