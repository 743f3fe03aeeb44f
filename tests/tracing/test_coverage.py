"""What leads around the tokens that are scored, by the graph and by gradients."""

import torch
from torch import Tensor

from tests.tracing.helpers import record_inputs
from tests.zoo import HandWrittenViT, make_images
from whence.tracing.coverage import leads_around, measure_around, read_through
from whence.tracing.graph import find_layers
from whence.tracing.recording import edge_of

X = make_images(32, 32)
CLASSES = torch.tensor([[0, 1], [2, 0], [1, 2]])


class TwoWays(HandWrittenViT):
    """Adds the brightest colour to the logits, beside the Transformer."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image) + image.mean((2, 3)).amax(1)[:, None]


def test_the_graph_proves_that_all_goes_through_the_tokens():
    trace = record_inputs(HandWrittenViT(), X)
    entering = find_layers(trace)[0].skip.input_edge.node
    assert not leads_around(trace.tops, trace.leaves, [entering])
    assert leads_around(trace.tops, trace.leaves, [edge_of(trace.sites[-1].place).node])
    assert torch.equal(measure_around(trace, lambda: CLASSES), torch.zeros(3))


def test_shares_are_those_of_plain_gradients():
    torch.manual_seed(0)
    model = TwoWays()
    found = measure_around(record_inputs(model, X), lambda: CLASSES)
    for sample, image in enumerate(X):
        shares = []
        for target in CLASSES[sample]:
            x = image[None].clone().requires_grad_()
            way, direct = HandWrittenViT.forward(model, x)[0, target], x.mean((2, 3)).amax()
            through, around = (
                (x * torch.autograd.grad(value, x)[0]).abs().sum().detach()
                for value in (way, direct)
            )
            shares.append(float(around / (around + through)))
        assert abs(max(shares) - float(found[sample])) < 1e-5


def test_gradients_through_one_place():
    """What enters the first block is all that the logits depend on: its part is the whole."""
    trace = record_inputs(HandWrittenViT(), X)
    entering = find_layers(trace)[0].skip.input_edge
    whole, there = trace.read(CLASSES, [*trace.leaves, entering])
    (through,) = read_through(trace, entering, there)
    assert torch.allclose(through, whole, atol=1e-6)
