import sys

import pytest
import torch

from tests.test_golden import CLASS_TOKEN
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, Layout, WhenceError
from whence.methods.attention_flow import _compute_flows

networkx = pytest.importorskip("networkx")
pytest.importorskip("scipy")


FOUR_PATCHES = Layout(grid=(2, 2))


def compute_by_networkx(maps, read) -> torch.Tensor:
    """Flows to every token through the maps of one sample, (tokens, tokens) each."""
    network = networkx.DiGraph()
    tokens = range(len(maps[0]))
    for layer, attention in enumerate(maps, 1):
        capacity = (attention + torch.eye(len(tokens), dtype=torch.float64)) / 2
        for i in tokens:
            for j in tokens:
                network.add_edge((layer, i), (layer - 1, j), capacity=float(capacity[i, j]))
    for i in tokens:
        network.add_edge("read", (len(maps), i), capacity=float(read[i]))
    flows = [networkx.maximum_flow_value(network, "read", (0, j)) for j in tokens]
    return torch.tensor(flows, dtype=torch.float64)


def sharpen(model):
    """Attention so uneven that not every flow ends at the same cut."""
    with torch.no_grad():
        for block in model.blocks:
            block.qkv[:2] *= 3
    return model


@pytest.mark.parametrize("start", [0, 1])
def test_image_with_class_token(start):
    model = sharpen(HandWrittenViT(patch=16)).double()
    result = Explainer(model, layout=FOUR_PATCHES).explain(
        make_images(32, 32).double(), method="attention_flow", start_layer=start, keep_evidence=True
    )
    for i in range(3):
        maps = [layer[i].mean(0) for layer in result.evidence.attention[start:]]
        expected = compute_by_networkx(maps, torch.eye(5)[0])
        assert torch.allclose(result.scores[i], expected[1:], rtol=1e-12)
    assert result.scores.std() > 0.01


def test_random_networks_with_cuts_in_the_middle():
    generator = torch.Generator().manual_seed(0)
    between = 0
    for _ in range(20):
        tokens, layers = 5, 4
        scores = torch.randn(layers, tokens, tokens, generator=generator, dtype=torch.float64)
        maps = list((scores * 6).softmax(-1))
        read = torch.rand(tokens, generator=generator, dtype=torch.float64).softmax(-1)
        capacities = [((m + torch.eye(tokens)) / 2).numpy() for m in reversed(maps)]
        flows = torch.from_numpy(_compute_flows(read.numpy(), capacities, None, lambda _: None))
        assert torch.allclose(flows, compute_by_networkx(maps, read), rtol=1e-12)
        simple = torch.from_numpy(capacities[-1]).sum(0).clamp(max=1)
        between += int((flows < simple - 1e-6).sum())
    assert between > 5


def test_average_pooling_starts_with_equal_shares():
    case = CASES["timm-vit-average-fused"]
    result = Explainer(build_model(case).double()).explain(
        case.inputs()[:1].double(), classes=2, method="attention_flow", keep_evidence=True
    )
    maps = [layer[0].mean(0) for layer in result.evidence.attention]
    expected = compute_by_networkx(maps, torch.full((16,), 1 / 16))
    assert torch.allclose(result.scores, expected.expand(1, 2, 16), rtol=1e-12)


def test_padded_text():
    model, inputs = build_model(CASES["Bert-sdpa"]).double(), make_texts()
    explainer = Explainer(model, layout=CLASS_TOKEN)
    result = explainer.explain(inputs, method="attention_flow", keep_evidence=True)
    for i, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        maps = [layer[i, :, :length, :length].mean(0) for layer in result.evidence.attention]
        expected = compute_by_networkx(maps, torch.eye(length)[0])
        assert torch.allclose(result.scores[i, 1:length], expected[1:], rtol=1e-12)
        assert result.scores[i, 0] == result.scores[i, 1:length].min()
        assert not result.scores[i, length:].any()


def test_one_token():
    inputs = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, 1).long()}
    scores = (
        Explainer(build_model(CASES["Bert-sdpa"])).explain(inputs, method="attention_flow").scores
    )
    assert torch.allclose(scores, torch.ones(1, 1))


def test_uniform_attention():
    model = HandWrittenViT(patch=16)
    with torch.no_grad():
        for block in model.blocks:
            block.qkv[:2].zero_()
    explainer = Explainer(model, layout=FOUR_PATCHES)
    scores = explainer.explain(torch.zeros(1, 3, 32, 32), method="attention_flow").scores
    # Capacities are 0.6 to the token itself and 0.1 to others: 0.1 reaches a token from each of the
    # four others at the end, and from itself the 5 x 0.1 that got there before.
    assert torch.allclose(scores, torch.full((1, 4), 0.9))


def test_a_start_layer_that_does_not_exist():
    with pytest.raises(WhenceError, match="start_layer=-1 does not exist"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="attention_flow", start_layer=-1
        )


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.csgraph", None)
    with pytest.raises(WhenceError, match="This needs scipy"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="attention_flow")
