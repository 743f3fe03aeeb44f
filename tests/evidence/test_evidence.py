"""What methods read and tell beside the readings themselves."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests.zoo import CASES, HandWrittenViT, built, images, texts
from whence import Explainer, Explanation, Layout, methods, rules
from whence.evidence import Evidence
from whence.methods import registry
from whence.tracing import record


@pytest.fixture
def seen(monkeypatch):
    """Evidence that the method "looks" was called with; it tells each class of each sample."""
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    kept = []

    @methods.register("looks")
    @dataclass(frozen=True)
    class Looks(methods.Method):
        needs: ClassVar = ("gradient", "forwards")
        tells: bool = True

        def __call__(self, evidence):
            kept.append(evidence)
            if self.tells:
                evidence.details = [
                    [{"sample": n, "class": c} for c in row]
                    for n, row in enumerate(evidence.classes.tolist())
                ]
            return evidence.pooling

    return kept


@pytest.mark.usefixtures("seen")
def test_what_a_method_tells_is_in_the_settings_and_is_saved(tmp_path, monkeypatch):
    # Five classes of three samples are then read in three groups.
    monkeypatch.setattr("whence.engine.eager._MAPS_AT_ONCE", 6)
    explainer = Explainer(HandWrittenViT())
    several = explainer.explain(images(32, 32), classes=[4, 0, 3, 1, 2], method="looks")
    assert several.details == [
        [{"sample": n, "class": c} for c in (4, 0, 3, 1, 2)] for n in range(3)
    ]
    several.save(tmp_path / "one")
    assert Explanation.load(tmp_path / "one").settings == several.settings
    one = explainer.explain(images(32, 32), target=[2, 0, 1], method="looks")
    assert one.details == [{"sample": n, "class": c} for n, c in enumerate((2, 0, 1))]
    kept = explainer.explain(images(32, 32), method="looks", keep_evidence=True)
    assert kept.evidence.details == []


@pytest.mark.usefixtures("seen")
def test_a_method_that_tells_nothing_leaves_the_settings_alone():
    result = Explainer(HandWrittenViT()).explain(images(32, 32), method="looks", tells=False)
    assert result.settings == {"tells": False}
    assert result.details is None


@pytest.mark.parametrize("gradients", ["plain", "balanced"])
def test_further_evidence_is_that_of_the_same_classes_and_rules(seen, gradients):
    explainer = Explainer(HandWrittenViT().double())
    pixels = images(32, 32).double()
    explainer.explain(pixels, classes=2, method="looks", rules="reference")
    (first,) = seen
    read = first.further(("gradient", "relevance", "hidden", "forwards"), gradients)
    expected = explainer.explain(
        pixels,
        classes=2,
        method="tiba",
        rules="reference",
        gradients=gradients,
        keep_evidence=True,
    ).evidence
    for name in ("gradient", "relevance"):
        for layer, other in zip(getattr(read, name), getattr(expected, name), strict=True):
            assert torch.equal(layer.movedim(0, 1), other)
    assert len(read.hidden) == 4
    assert read.forwards is first.forwards
    assert first.further(("attention",)).forwards is None


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
def test_probabilities_of_the_explained_classes(seen, kind):
    model = built(CASES["ViTForImageClassification-sdpa"]).double()
    model.config.problem_type = kind
    Explainer(model).explain(images(32, 32).double(), classes=2, method="looks")
    (evidence,) = seen
    logits = torch.randn(4, 5, dtype=torch.float64)
    samples = torch.tensor([2, 0, 2, 1])
    found = evidence.target_probabilities(logits, samples)
    for row, sample in enumerate(samples.tolist()):
        for n, c in enumerate(evidence.classes[sample].tolist()):
            total = logits[row].exp().sum()
            if kind.startswith("multi"):
                total = 1 + logits[row, c].exp()
            assert found[n, row].item() == pytest.approx((logits[row, c].exp() / total).item())


def test_a_single_logit_is_no_probability(seen):
    model = HandWrittenViT()
    model.head = torch.nn.Linear(32, 1)
    Explainer(model).explain(images(32, 32), method="looks")
    logits = torch.tensor([[3.0], [-2.0]])
    assert seen[0].probabilities(logits, torch.tensor([0, 1])).tolist() == [[3.0, -2.0]]


def test_tokens_of_no_word_are_special(seen, text_model):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_model)
    model = transformers.BertForSequenceClassification.from_pretrained(text_model).float()
    batch = tokenizer(["a good film", "bad"], padding=True, return_tensors="pt")
    Explainer(model).explain(batch, method="looks")
    Explainer(model, tokenizer=tokenizer).explain(dict(batch), method="looks")
    for evidence in seen:
        assert evidence.special.int().tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 1, 1]]
    Explainer(model).explain(dict(batch), method="looks")
    assert seen[-1].special is None


def test_images_have_no_special_tokens(seen):
    Explainer(HandWrittenViT()).explain(images(32, 32), method="looks")
    Explainer(built(CASES["Bert-sdpa"])).explain(texts(), method="looks")
    assert [evidence.special for evidence in seen] == [None, None]


def test_layer_by_layer_other_readings_are_as_without():
    case = CASES["timm-vit-fused"]
    of = record(built(case), (case.inputs(),), {}, 0)
    classes = of.logits.detach().argmax(1, keepdim=True)
    stable, layout = rules.get("stable"), Layout(grid=(4, 4), prefix=1)
    kinds = {"gradient", "hidden", "hidden_gradient", "hidden_relevance", "input_relevance"}
    whole = Evidence(of, classes, layout, kinds, stable)
    found = Evidence(of, classes, layout, kinds, stable, streamed=True, release=True)
    for name in kinds - {"gradient", "input_relevance"}:
        for a, b in zip(getattr(found, name), getattr(whole, name), strict=True):
            assert torch.equal(a, b)
    assert torch.equal(found.input_relevance, whole.input_relevance)
    layers = list(found.fuse_heads(lambda layer: layer.gradient))[::-1]
    for a, b in zip(layers, whole.gradient, strict=True):
        assert torch.allclose(a, b.mean(-3), atol=1e-7)
