"""Evidence: computed when asked for, refused where it was not declared, and what goes with it."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests.layouts import make_layout
from tests.tracing.helpers import predicted_classes, record_case, record_inputs, to_double
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, Explanation, methods, rules
from whence.errors import UndeclaredEvidenceError, WhenceError
from whence.evidence import KINDS, Evidence, Forwards
from whence.inputs.arguments import ModelArguments
from whence.methods import registry
from whence.rules.balanced import BALANCED
from whence.targets import ClassScalars
from whence.tracing import Trace

STABLE = rules.get("stable")
GRID = make_layout((4, 4), 1, 17, (32, 32))


def make_evidence(trace: Trace, *needs: str, classes=None, **options) -> Evidence:
    classes = predicted_classes(trace) if classes is None else classes
    return Evidence(trace, ClassScalars(classes), GRID, needs, STABLE, **options)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record_case("timm-vit-fused")


@pytest.fixture
def backward_passes(monkeypatch) -> list:
    """The rules of each backward pass for classes that is made."""
    passes = []
    iterate = Trace.iterate_backward

    def watch(self, classes, at, rule_sets, **options):
        passes.append([None if how is None else how.name for how in rule_sets])
        return iterate(self, classes, at, rule_sets, **options)

    monkeypatch.setattr(Trace, "iterate_backward", watch)
    return passes


# What is declared --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_that_was_not_declared_is_refused(trace, kind):
    others = set(KINDS) - {kind, "forwards"}  # further passes need the inputs, too
    with pytest.raises(UndeclaredEvidenceError, match=f"add '{kind}' to its needs"):
        getattr(make_evidence(trace, *others), kind)


@pytest.mark.parametrize("kind", ["attention", "gradient", "relevance"])
def test_a_streamed_method_reads_maps_site_by_site_only(trace, kind):
    evidence = make_evidence(trace, kind, streamed=True)
    with pytest.raises(UndeclaredEvidenceError, match=rf"reads '{kind}' by evidence.fuse_heads"):
        getattr(evidence, kind)


def test_evidence_that_cannot_run_the_model_says_so(trace):
    with pytest.raises(UndeclaredEvidenceError, match="cannot run the model again"):
        _ = make_evidence(trace, "forwards").forwards


def test_evidence_that_a_method_lacks_is_named_to_its_author(monkeypatch):
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @methods.register("forgetful")
    @dataclass(frozen=True)
    class Forgetful(methods.Method):
        needs: ClassVar = ("attention",)

        def __call__(self, evidence):
            return evidence.gradient[-1].mean((-3, -2))

    with pytest.raises(WhenceError, match="add 'gradient' to its needs"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="forgetful")


# When it is computed -----------------------------------------------------------------------------


def test_nothing_is_computed_before_it_is_asked_for(trace, backward_passes):
    evidence = make_evidence(trace, *set(KINDS) - {"forwards"})
    assert backward_passes == []
    assert len(evidence.attention) == len(trace.sites)
    assert backward_passes == []
    for kind in ("gradient", "input_gradient", "hidden_gradient", "value_input_gradient"):
        getattr(evidence, kind)
    _ = evidence.pooling
    assert backward_passes == [[None]]
    for kind in ("relevance", "input_relevance", "hidden_relevance"):
        getattr(evidence, kind)
    assert backward_passes == [[None], ["stable"]]


def test_a_streamed_method_takes_one_backward_pass(trace, backward_passes):
    evidence = make_evidence(trace, "gradient", "relevance", "attention", streamed=True)
    _ = evidence.pooling
    list(evidence.fuse_heads(lambda site: site.attention * site.gradient * site.relevance))
    assert backward_passes == [[None, "stable"]]


def test_readings_have_the_classes_first(trace):
    classes = torch.tensor([[0, 3]] * 3)
    evidence = make_evidence(trace, *set(KINDS) - {"forwards"}, classes=classes)
    maps, tokens = (2, 3, 3, 17, 17), (2, 3, 17, 192)
    for kind, shape, count in (
        ("attention", maps[1:], 3),
        ("gradient", maps, 3),
        ("relevance", maps, 3),
        ("hidden", tokens[1:], 4),
        ("hidden_gradient", tokens, 4),
        ("hidden_relevance", tokens, 4),
        ("value_input", tokens[1:], 3),
        ("value_input_gradient", tokens, 3),
    ):
        assert [value.shape for value in getattr(evidence, kind)] == [shape] * count, kind
    assert evidence.inputs[0].shape == (3, 3, 32, 32)
    assert evidence.input_gradient[0].shape == (2, 3, 3, 32, 32)
    assert evidence.input_relevance[0].shape == (2, 3, 3, 32, 32)
    assert evidence.pooling.shape == (2, 3, 17)
    assert (evidence.batch, evidence.tokens, len(evidence.blocks)) == (3, 17, 3)


def test_streamed_readings_are_those_of_lists():
    trace = record_case("timm-vit-fused")
    kinds = {"gradient", "hidden", "hidden_gradient", "hidden_relevance", "input_relevance"}
    whole = make_evidence(trace, *kinds)
    expected = {kind: getattr(whole, kind) for kind in (*kinds, "pooling")}
    streamed = make_evidence(trace, *kinds, streamed=True, release=True)
    maps = list(streamed.fuse_heads(lambda site: site.gradient))[::-1]
    for a, b in zip(maps, expected.pop("gradient"), strict=True):
        assert torch.allclose(a, b.mean(-3), rtol=1e-12)
    for kind, wanted in expected.items():
        for a, b in zip(getattr(streamed, kind), wanted, strict=True):
            assert torch.allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("first", [1, -1, 5])
def test_maps_before_the_first_layer_are_not_read(trace, first):
    evidence = make_evidence(trace, "gradient", first_layer=first)
    read = [gradient.numel() > 0 for gradient in evidence.gradient]
    assert read == {1: [False, True, True], -1: [False, False, True], 5: [True] * 3}[first]


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
@pytest.mark.parametrize("streamed", [False, True])
def test_heads_are_fused(trace, heads, streamed):
    evidence = make_evidence(trace, "attention", streamed=streamed)
    reduce = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}[heads]
    fused = list(evidence.fuse_heads(lambda site: site.attention, heads))
    assert len(fused) == 3
    for found, attention in zip(fused[::-1], trace.attention(), strict=True):
        assert torch.allclose(found, reduce(attention, -3))


# What is always there ----------------------------------------------------------------------------


def test_pooling_of_classes_or_of_the_predicted_class(trace):
    classes = torch.tensor([[0, 3]] * 3)
    own = make_evidence(trace, classes=classes).pooling
    assert torch.equal(own, make_evidence(trace, "gradient", classes=classes).pooling)
    for_all = make_evidence(trace, classes=classes, class_specific=False).pooling
    assert torch.equal(for_all, make_evidence(trace).pooling.expand(2, -1, -1))
    assert own.argmax(-1).tolist() == [[0, 0, 0]] * 2


def test_the_token_mask_is_false_at_padding(trace):
    padding = torch.zeros(3, 17, dtype=torch.bool)
    padding[1, 9:] = True
    assert torch.equal(make_evidence(trace, padding=padding).token_mask, ~padding)
    for unknown in (None, padding[:, 2:]):
        assert make_evidence(trace, padding=unknown).token_mask.all()


@pytest.mark.parametrize("multi_label", [False, True])
def test_probabilities_of_the_explained_classes(multi_label):
    classes = torch.tensor([[0, 3], [1, 2], [4, 0]])
    targets = ClassScalars(classes, multi_label=multi_label)
    logits, samples = torch.randn(4, 5, dtype=torch.float64), torch.tensor([2, 0, 2, 1])
    found = targets.probabilities(logits, samples)
    for row, sample in enumerate(samples.tolist()):
        for n, c in enumerate(classes[sample].tolist()):
            assert targets.values(logits, samples)[n, row] == logits[row, c]
            total = 1 + logits[row, c].exp() if multi_label else logits[row].exp().sum()
            assert found[n, row].item() == pytest.approx((logits[row, c].exp() / total).item())


def test_a_single_logit_is_no_probability():
    model = HandWrittenViT()
    model.head = torch.nn.Linear(32, 1)
    evidence = make_evidence(record_inputs(model, make_images(32, 32)))
    logits = torch.tensor([[3.0], [-2.0]])
    found = evidence.targets.probabilities(logits, torch.tensor([0, 1]))
    assert found.tolist() == [[3.0, -2.0]]


# Evidence of other kinds -------------------------------------------------------------------------


@pytest.mark.parametrize("gradient_rules", [None, BALANCED])
def test_derived_evidence_is_of_the_same_trace_classes_and_rules(gradient_rules):
    model, pixels = HandWrittenViT().double(), to_double(make_images(32, 32))
    trace = record_inputs(model, pixels)
    classes = torch.tensor([[0, 3]] * 3)
    reference = rules.get("reference")
    arguments = ModelArguments((pixels,))
    first = Evidence(
        trace,
        ClassScalars(classes),
        GRID,
        ("forwards",),
        reference,
        make_forwards=lambda: Forwards(model, arguments, None, trace, 2**30),
    )
    derived = first.derive(("gradient", "relevance", "hidden", "forwards"), gradient_rules)
    for found, how in ((derived.gradient, gradient_rules), (derived.relevance, reference)):
        places = [site.weights for site in trace.sites]
        for ours, expected in zip(found, trace.read(classes, places, how), strict=True):
            assert torch.equal(ours, expected)
    assert len(derived.hidden) == 4
    assert derived.forwards is first.forwards
    without = first.derive(("attention",))
    with pytest.raises(UndeclaredEvidenceError, match="'forwards'"):
        _ = without.forwards


# Evidence and details as explanations have them --------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """Evidence that the method "looks" was called with; it describes each class of each sample."""
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    seen = []

    @methods.register("looks")
    @dataclass(frozen=True)
    class Looks(methods.Method):
        needs: ClassVar = ("gradient", "forwards")
        describes: bool = True

        def __call__(self, evidence):
            seen.append(evidence)
            if self.describes:
                evidence.details = [
                    [{"sample": n, "class": c} for c in row]
                    for n, row in enumerate(evidence.targets.indices.tolist())
                ]
            return evidence.pooling

    return seen


@pytest.mark.usefixtures("seen")
def test_details_of_a_method_are_part_of_the_explanation(tmp_path, monkeypatch):
    # Five classes of three samples are then read in three groups.
    monkeypatch.setattr("whence.engine.eager._MAPS_AT_ONCE", 6)
    explainer = Explainer(HandWrittenViT())
    several = explainer.explain(make_images(32, 32), classes=[4, 0, 3, 1, 2], method="looks")
    expected = [[{"sample": n, "class": c} for c in (4, 0, 3, 1, 2)] for n in range(3)]
    assert several.details == expected
    several.save(tmp_path / "one.safetensors")
    assert Explanation.load(tmp_path / "one.safetensors").details == expected
    one = explainer.explain(make_images(32, 32), target=[2, 0, 1], method="looks")
    assert one.details == [{"sample": n, "class": c} for n, c in enumerate((2, 0, 1))]


@pytest.mark.usefixtures("seen")
def test_a_method_without_details_leaves_none():
    result = Explainer(HandWrittenViT()).explain(
        make_images(32, 32), method="looks", describes=False
    )
    assert result.settings == {"describes": False}
    assert result.details is None


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
    Explainer(HandWrittenViT()).explain(make_images(32, 32), method="looks")
    Explainer(build_model(CASES["Bert-sdpa"])).explain(make_texts(), method="looks")
    assert [evidence.special for evidence in seen] == [None, None]


def test_input_tokens_leave_out_prefix_special_and_padding(trace):
    padding = torch.zeros(trace.batch, 16, dtype=torch.bool)
    padding[0, 14:] = True
    special = torch.zeros_like(padding)
    special[:, 2] = True
    layout = dataclasses.replace(GRID, special=(5,))
    evidence = make_evidence(trace, padding=padding, special=special)
    evidence.layout = layout
    expected = [
        [t > 0 and t not in (3, 5) and not padding[b, t - 1] for t in range(17)]
        for b in range(trace.batch)
    ]
    assert evidence.input_tokens.tolist() == expected
