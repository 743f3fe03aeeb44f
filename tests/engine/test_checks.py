"""Checks of a result: each passes where it should, and fails where something is wrong."""

import dataclasses
import html
import warnings

import pytest
import torch
from torch import Tensor, nn

from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, WhenceError, WhenceWarning, rules
from whence.explanation import Check, Explanation
from whence.rules import RuleSet

X = make_images(32, 32)


def make_model(kind: type[nn.Module] = HandWrittenViT) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def find_check(result: Explanation, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


def explain_in_doubt(model: nn.Module, match: str, **request) -> Explanation:
    with pytest.warns(WhenceWarning, match=match):
        return Explainer(model).explain(X, **request)


@pytest.mark.parametrize("name", ["timm-vit-fused", "Bert-sdpa"])
@pytest.mark.parametrize("method", ["whence", "tiba", "lrp", "gae", "input_x_gradient"])
def test_good_results_pass_all_checks(name, method):
    case = CASES[name]
    model = build_model(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = Explainer(model).explain(case.inputs(), method=method, classes=2, verify=True)
    assert {check.status for check in result.checks} == {"passed"}
    names = {check.name for check in result.checks}
    assert {"logits", "dead", "layout"} <= names
    assert ("conservation" in names) == (method in ("tiba", "lrp"))
    assert ("coverage" in names) == (method in ("whence", "tiba", "gae"))


def test_cheap_checks_come_with_every_result():
    result = Explainer(make_model()).explain(X)
    assert [check.name for check in result.checks] == ["coverage", "dead", "layout"]
    assert find_check(result, "coverage").figure == 1


# Each fails --------------------------------------------------------------------------------------


def test_logits_that_change_when_nobody_watches():
    class Restless(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image) + torch.randn(())

    Explainer(make_model(Restless)).explain(X)
    with pytest.raises(WhenceError, match=r"logits differ by .* of their size"):
        Explainer(make_model(Restless)).explain(X, verify=True)


def leak(share: float) -> RuleSet:
    """Rules that promise to conserve relevance, and lose or add some in every sum."""
    stable = rules.get("stable")

    def rule(operation, relevance):
        return tuple(r * (1 + share) for r in stable.rules["add"](operation, relevance))

    return dataclasses.replace(stable.extend("leaking", add=rule), conserves=True)


def test_relevance_that_is_lost_or_added():
    result = explain_in_doubt(
        make_model(), r"[56]\.\d% of the relevance", method="tiba", rules=leak(-0.01), verify=True
    )
    assert find_check(result, "conservation").status == "doubt"
    with pytest.raises(WhenceError, match="of the relevance was lost or added"):
        Explainer(make_model()).explain(X, method="tiba", rules=leak(1.0), verify=True)


def test_relevance_at_the_input_cannot_be_more_than_the_target_has():
    Explainer(make_model()).explain(X, method="lrp")
    with pytest.raises(WhenceError, match="of the relevance was lost or added"):
        Explainer(make_model()).explain(X, method="lrp", rules=leak(1.0))


def test_rules_that_promise_nothing_are_not_measured():
    result = Explainer(make_model()).explain(X, method="tiba", rules="reference", verify=True)
    assert "conservation" not in [check.name for check in result.checks]


def test_too_few_steps_of_integrated_gradients():
    class Sharp(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            return (super().forward(image) * 4).tanh()

    request = {"method": "integrated_gradients", "target": 1}
    result = explain_in_doubt(make_model(Sharp), "more steps come nearer", steps=2, **request)
    model = make_model(Sharp)
    with torch.no_grad():
        change = (model(X) - model(torch.zeros_like(X)))[:, 1]
    gap = ((result.scores.sum(1) - change) / change).abs().max()
    check = find_check(result, "completeness")
    assert check.figure == pytest.approx(float(gap), rel=1e-3)
    better = Explainer(make_model(Sharp)).explain(X, steps=200, **request)
    assert find_check(better, "completeness").status == "passed"


class TwoWays(HandWrittenViT):
    """Reads the mean of its pixels beside the Transformer, for the first class."""

    strength = 1.0

    def forward(self, image: Tensor) -> Tensor:
        logits, added = super().forward(image), self.strength * image.mean((1, 2, 3))
        return logits + added[:, None] * torch.eye(logits.shape[1])[0]


class MostlyAround(TwoWays):
    strength = 1e6


@pytest.mark.parametrize("method", ["whence", "gae"])
def test_what_leads_around_the_tokens_is_measured(method):
    result = explain_in_doubt(
        make_model(TwoWays), "goes through the tokens", target=0, method=method
    )
    model, pixels = make_model(TwoWays), X.clone().requires_grad_()
    shares = []
    for sample in range(len(X)):
        logits, mean = HandWrittenViT.forward(model, pixels)[sample], pixels[sample].mean()
        ways = (mean, logits[0])
        if method == "whence":  # of the logit less the mean of all, to which both ways lead
            ways = (mean - mean / len(logits), logits[0] - logits.mean())
        around, through = (
            (pixels * torch.autograd.grad(value, pixels, retain_graph=True)[0]).abs().sum()
            for value in ways
        )
        shares.append(float(through / (through + around)))
    assert find_check(result, "coverage").figure == pytest.approx(min(shares), rel=1e-4)


def test_a_decoder_that_reads_the_words_again():
    """BART's classifier gives the same words to encoder and decoder; `gae` scores the encoder's."""
    from transformers import BartConfig, BartForSequenceClassification

    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 40}
    layers = {f"{side}_layers": 2 for side in ("encoder", "decoder")}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    model = BartForSequenceClassification(BartConfig(**sizes, **layers, **heads)).eval()
    ids = torch.randint(4, 40, (1, 7))
    ids[:, -1] = model.config.eos_token_id
    with pytest.warns(WhenceWarning, match="goes through the tokens that were scored"):
        result = Explainer(model).explain({"input_ids": ids}, target=1, method="gae")
    embeddings = []
    for side in (model.model.encoder, model.model.decoder):
        side.embed_tokens.register_forward_hook(lambda _m, _a, output: embeddings.append(output))
    logit = model(input_ids=ids).logits[0, 1]
    gradients = torch.autograd.grad(logit, embeddings)
    products = zip(embeddings, gradients, strict=True)
    encoder, decoder = (float((x * g).abs().sum()) for x, g in products)
    share = encoder / (encoder + decoder)
    assert find_check(result, "coverage").figure == pytest.approx(share, rel=1e-3)


def test_a_map_of_what_hardly_matters_is_refused():
    with pytest.raises(WhenceError, match="Only 0% of the target's dependence on the input"):
        Explainer(make_model(MostlyAround)).explain(X, target=0)


def test_methods_at_the_input_see_both_ways():
    result = Explainer(make_model(TwoWays)).explain(X, method="input_x_gradient")
    assert {check.status for check in result.checks} == {"passed"}


def test_dead_maps():
    model = make_model()
    with torch.no_grad():
        model.head.weight[3] = 0
    result = explain_in_doubt(model, "3 of 3 maps of scores are all zeros", target=3, method="gae")
    assert find_check(result, "dead").figure == 3
    assert not result.scores.any()


def test_a_layout_that_cannot_be_proven():
    class Mixes(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward((image.flatten(2) @ self.mix).view_as(image))

        mix = torch.randn(32 * 32, 32 * 32, generator=torch.Generator().manual_seed(0)) / 32

    result = explain_in_doubt(make_model(Mixes), "tokens", target=0)
    check = find_check(result, "layout")
    assert check.status == "doubt"
    assert result.grid is None
    assert "tokens" in check.sentence


# What becomes of them ----------------------------------------------------------------------------


def test_checks_are_saved_and_shown(tmp_path):
    result = explain_in_doubt(make_model(TwoWays), "goes through the tokens", target=0)
    result.save(tmp_path / "a.safetensors")
    loaded = Explanation.load(tmp_path / "a.safetensors")
    assert loaded.checks == result.checks
    assert len(loaded.notes) == 1
    assert loaded.notes[0].startswith("Only ")
    assert loaded.notes[0] in html.unescape(loaded._repr_html_())
    assert "goes through the tokens" in loaded._repr_html_()


def test_the_worst_of_all_chunks_counts():
    whole = explain_in_doubt(make_model(TwoWays), "goes through the tokens", target=0)
    chunks = explain_in_doubt(make_model(TwoWays), "goes through", target=0, memory=1e-6)
    assert chunks.checks[0].figure == pytest.approx(whole.checks[0].figure, rel=1e-5)
