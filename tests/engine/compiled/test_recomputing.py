"""What is cheap is computed again: values stay, and less of them is kept."""

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from whence.engine.compiled.graph import record_graph
from whence.engine.compiled.regions import split_regions


class Block(nn.Module):
    """A pre-norm MLP with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 24), nn.Linear(24, 6)

    def forward(self, x):
        for _ in range(4):  # long enough to be a region
            x = x + self.down(F.gelu(self.up(self.norm(x)))).tanh()
        return x


def compute(blocks, x):
    """The sum of the gradients of weights, which are computed from activations."""
    with torch.enable_grad():
        gradients = torch.autograd.grad(blocks(x).square().sum(), list(blocks.parameters()))
    return [torch.stack([gradient.sum() for gradient in gradients])]


def run(regions, returned, values):
    """Run regions, and count the bytes that are kept between them at most."""
    most = 0
    given = {x.untyped_storage().data_ptr() for x in values.values()}
    for region in regions:
        module = fx.GraphModule({}, region.graph)
        outputs = module(*(values[name] for name in region.inputs))
        values.update(zip(region.outputs, outputs, strict=True))
        for name in region.released:
            del values[name]
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in values.values()}
        most = max(most, sum(x.nbytes() for at, x in storages.items() if at not in given))
    return [values[name] for name in returned], most


@pytest.fixture
def recorded():
    torch.manual_seed(0)
    blocks, x = nn.Sequential(*(Block() for _ in range(6))), torch.randn(200, 6)
    graph, constants, _ = record_graph(lambda x: compute(blocks, x), [x])
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    return graph, dict(zip(names, (x, *constants), strict=True)), compute(blocks, x)


def test_values_stay_and_less_is_kept(recorded):
    graph, values, expected = recorded
    plain, most = run(*split_regions(graph), dict(values))
    found, less = run(*split_regions(graph, recompute=True), dict(values))
    assert torch.equal(plain[0], expected[0])
    assert torch.equal(found[0], expected[0])
    assert less < 0.8 * most


def test_matrix_products_are_not_computed_again(recorded):
    graph, _, _ = recorded

    def count(target, **options):
        regions, _ = split_regions(graph, **options)
        nodes = [node for region in regions for node in region.graph.nodes]
        return sum(node.target is target for node in nodes)

    for product in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        assert count(product, recompute=True) == count(product) > 0
    gelu = torch.ops.aten.gelu.default
    assert count(gelu, recompute=True) > count(gelu)


def test_regions_that_repeat_stay_equal(recorded):
    graph, _, _ = recorded
    kinds = [
        len({region.code for region in split_regions(graph, recompute=recompute)[0]})
        for recompute in (False, True)
    ]
    assert kinds[1] <= kinds[0] + 2
