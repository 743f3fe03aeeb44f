"""Models without attention: methods that read only the input explain them, as Captum does."""

import pytest
import torch
from captum.attr import FeatureAblation, InputXGradient, IntegratedGradients, Saliency
from torch import nn

from whence import Explainer, WhenceError, methods
from whence.methods import registry

pytestmark = pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients")

CELL = 4  # of 32 pixels: 8 rows and columns


@pytest.fixture
def network():
    """A convolutional network with a norm, a skip connection and a linear head."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.BatchNorm2d(8), nn.ReLU())
            self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.GELU())
            self.head = nn.Linear(8, 5)

        def forward(self, pixels):
            x = self.stem(pixels)
            x = nn.functional.max_pool2d(x + self.inner(x), 2)
            return self.head(x.mean((2, 3)))

    model = Network().double()
    model(torch.randn(16, 3, 32, 32).double())  # so that the norm has statistics
    return model.eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32).double()


def pool(values):
    """The mean over each cell, (batch, cells), of (batch, height, width)."""
    return nn.functional.avg_pool2d(values[:, None], CELL).flatten(1)


def number_cells():
    rows = torch.arange(32) // CELL
    return (rows[:, None] * 8 + rows).expand(1, 3, -1, -1)


def test_as_captum(network, images):
    explainer, target = Explainer(network), 3

    def explain(method, **options):
        result = explainer.explain(images, target, method=method, **options)
        assert result.grid == (8, 8)
        return result.scores

    saliency = Saliency(network).attribute(images, target)
    assert torch.allclose(explain("gradient"), pool(saliency.amax(1)))
    product = InputXGradient(network).attribute(images, target).sum(1)
    assert torch.allclose(explain("input_x_gradient"), pool(product) * CELL**2)
    integral = IntegratedGradients(network).attribute(images, 0, target, n_steps=20).sum(1)
    integrated = explain("integrated_gradients", steps=20)
    assert torch.allclose(integrated, pool(integral) * CELL**2)
    covered = FeatureAblation(network).attribute(images, 0, target, feature_mask=number_cells())
    assert torch.allclose(explain("occlusion"), pool(covered[:, 0]))


@pytest.mark.parametrize("method", [*registry.list_at_input("image"), "random"])
def test_every_method_that_reads_the_input(network, images, method):
    explainer = Explainer(network)
    few = {"masks": 40} if method == "rise" else {}
    result = explainer.explain(images, classes=2, method=method, **few)
    assert result.scores.shape == (2, 2, 64)
    alone = explainer.explain(images[1:], classes=2, method=method, **few).scores
    assert torch.allclose(result.scores[1:], alone)
    assert (result.scores - result.scores.mean(-1, keepdim=True)).abs().max() > 0


def test_rows_of_numbers():
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    rows = torch.randn(3, 6).double()
    for method in (*registry.list_at_input("text"), "random"):
        assert Explainer(model).explain(rows, method=method).scores.shape == (3, 6)
    gradient = Explainer(model).explain(rows, 1, method="gradient").scores
    assert torch.allclose(gradient, Saliency(model).attribute(rows, 1))


def test_methods_that_read_attention_name_those_that_do_not(network, images):
    others = set(methods.available("image")) - set(registry.list_at_input("image")) - {"random"}
    assert {"whence", "tiba", "gae", "rollout", "gradcam"} <= others
    for method in sorted(others):
        with pytest.raises(WhenceError) as raised:
            Explainer(network).explain(images, method=method)
        assert str(raised.value).startswith("No attention was seen in Network (softmax weights")
        assert str(raised.value).endswith(
            f"Method '{method}' reads attention; these methods read only the input: attnlrp, dave, "
            f"gradient, input_x_gradient, integrated_gradients, lrp, occlusion, reslrp, rise, "
            f"smoothgrad."
        )


def test_a_grid_of_your_own(network, images):
    from whence import Layout

    result = Explainer(network, layout=Layout(grid=(4, 2))).explain(images, 0, method="gradient")
    saliency = Saliency(network).attribute(images, 0).amax(1)
    expected = nn.functional.avg_pool2d(saliency[:, None], (8, 16)).flatten(1)
    assert torch.allclose(result.scores, expected)
