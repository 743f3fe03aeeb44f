"""Classes that are computed apart, from different layers, are explained by what they depend on."""

import pytest
import torch
from torch import Tensor, nn

from tests.tracing.helpers import record_inputs
from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, WhenceError
from whence.tracing.graph import find_layers
from whence.tracing.graph.targets import split_targets


class TwoHeads(HandWrittenViT):
    """Two classes are read after the first block, and three after the last."""

    def __init__(self, depths: tuple[int, ...] = (1, 3)) -> None:
        super().__init__()
        self.depths = depths
        self.heads = nn.ModuleList([nn.Linear(32, 2), nn.Linear(32, 3)])

    def forward(self, image: Tensor) -> Tensor:
        logits = []
        for depth, head in zip(self.depths, self.heads, strict=True):
            blocks, self.blocks, own = self.blocks, self.blocks[:depth], self.head
            self.head = head
            logits.append(super().forward(image))
            self.blocks, self.head = blocks, own
        return torch.cat(logits, 1)


class OneHead(TwoHeads):
    """One of the two heads alone."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image)[:, self.classes]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(5)
    return TwoHeads().double()


def test_layers_of_each_class(model):
    trace = record_inputs(model, make_images(32, 32).double())
    classes = torch.tensor([[0, 1, 2, 4, 0]] * 3)
    parts = split_targets(trace, 5, lambda: classes)
    assert [(len(find_layers(one)), chosen) for one, chosen in parts] == [
        (1, [0, 1]),
        (3, [2, 3]),
        (1, [4]),
    ]


def test_all_logits_of_one_operation_depend_on_the_same():
    trace = record_inputs(HandWrittenViT(), make_images(32, 32))
    ((one, chosen),) = split_targets(trace, 2, lambda: pytest.fail("not needed"))
    assert one is trace
    assert chosen == [0, 1]


def test_samples_whose_classes_depend_on_different_layers(model):
    trace = record_inputs(model, make_images(32, 32).double())
    assert split_targets(trace, 1, lambda: torch.tensor([[0], [3], [0]])) is None


@pytest.mark.parametrize("method", ["tiba", "gae", "shared_evidence", "input_x_gradient"])
def test_scores_are_those_of_each_class_alone(model, method):
    images = make_images(32, 32).double()
    explainer = Explainer(model)
    together = explainer.explain(images, classes=[1, 2], method=method).scores
    mixed = explainer.explain(images, target=[1, 2, 1], method=method).scores
    single = OneHead().double()
    single.load_state_dict(model.state_dict())
    for column, (target, head) in enumerate(((1, slice(0, 2)), (2, slice(2, 5)))):
        single.classes = head
        expected = Explainer(single).explain(images, target=target - head.start, method=method)
        assert torch.allclose(together[:, column], expected.scores, rtol=1e-9)
        rows = [n for n, chosen in enumerate([1, 2, 1]) if chosen == target]
        assert torch.allclose(mixed[rows], expected.scores[rows], rtol=1e-9)


def test_a_logit_less_the_mean_of_all_depends_on_all_heads(model):
    """Then nothing is split: rows of one batch, and classes, are what each is alone."""
    images, explainer = make_images(32, 32).double(), Explainer(model)
    together = explainer.explain(images, classes=[1, 2], method="whence").scores
    mixed = explainer.explain(images, target=[1, 2, 1], method="whence").scores
    for column, target in enumerate((1, 2)):
        expected = explainer.explain(images, target=target, method="whence").scores
        assert torch.allclose(together[:, column], expected, rtol=1e-9)
        rows = [n for n, chosen in enumerate([1, 2, 1]) if chosen == target]
        assert torch.allclose(mixed[rows], expected[rows], rtol=1e-9)


def test_methods_that_know_no_class_go_by_the_predicted_one(model):
    images = make_images(32, 32).double()[:1]
    with torch.no_grad():
        model.heads[0].bias += 100
    scores = Explainer(model).explain(images, classes=[0, 4], method="rollout").scores
    single = OneHead().double()
    single.load_state_dict(model.state_dict())
    single.classes = slice(0, 2)
    expected = Explainer(single).explain(images, target=0, method="rollout").scores
    assert torch.allclose(scores, expected[:, None].expand_as(scores), rtol=1e-9)


def test_evidence_of_different_layers_is_not_kept_together(model):
    images = make_images(32, 32).double()
    for asked in ({"classes": [0, 2]}, {"target": [0, 2, 0]}):
        with pytest.raises(WhenceError, match="depend on different layers"):
            Explainer(model).explain(images, method="tiba", keep_evidence=True, **asked)


class Apart(nn.Module):
    """An attention, its two heads, and a function that makes logits of the heads and the input."""

    def __init__(self, finish) -> None:
        super().__init__()
        self.finish = finish
        self.map, self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        for _ in range(40):  # there are 2^40 ways to the input
            y = y.sin() + y.cos()
        attended = y + nn.functional.scaled_dot_product_attention(y, y, y)
        return self.finish(self.first(y[:, 0]), self.second(attended[:, 0]), x[:, 0, :2])


def swap_many_times(first: Tensor, second: Tensor, _) -> Tensor:
    for _ in range(41):  # there are 2^41 ways to each head
        first, second = torch.cat([second, first], 1).chunk(2, 1)
    return torch.cat([first, second], 1)


def overwrite(first: Tensor, second: Tensor, _) -> Tensor:
    logits = torch.cat([first, second], 1)
    logits.view(-1).mul_(2)
    return logits


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (lambda first, second, x: torch.cat([first, second], 1), [(0, [0, 1]), (1, [2, 3])]),
        (lambda first, second, x: torch.cat([x, second], 1), [(0, [0, 1]), (1, [2, 3])]),
        (swap_many_times, [(1, [0, 1]), (0, [2, 3])]),
        (lambda first, second, x: torch.cat([first, second], 1).cumsum(1), [(1, [0, 1, 2, 3])]),
        (lambda first, second, x: torch.cat([first, second], 1) * 2, [(1, [0, 1, 2, 3])]),
        (overwrite, [(1, [0, 1, 2, 3])]),
    ],
    ids=["heads", "the input", "moved", "unknown", "one operation", "in place"],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_sites_of_each_logit(finish, expected, batch):
    torch.manual_seed(0)
    trace = record_inputs(Apart(finish), torch.randn(batch, 5, 8))
    assert len(find_layers(trace)) == 1  # what was found for all classes is not kept for some
    parts = split_targets(trace, 4, lambda: torch.arange(4).expand(batch, -1))
    assert [(len(find_layers(part)), chosen) for part, chosen in parts] == expected
    assert [len(part.sites) for part, _ in parts] == [sites for sites, _ in expected]
    assert len(trace.sites) == 1
