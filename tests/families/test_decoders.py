"""Causal language models, unmodified: every method against its definition, for every family."""

import inspect
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.families.decoders import BRANCH_NORMS, EAGER_ONLY, FAMILIES, build, make_table
from tests.families.formulas import Plain, center
from tests.families.models import (
    LAYERS,
    check_scores,
    copy_eager,
    make_ids,
    replace_embeddings,
)
from tests.families.oracles import STEPS, Oracle
from whence import Explainer, WhenceError, targets

AT_THE_INPUT = ("attnlrp", "input_x_gradient", "integrated_gradients", "occlusion")
OF_ATTENTION = ("whence", "tiba", "gae", "rollout", "attention_norm", "value_zeroing")
METHODS = (*OF_ATTENTION, *AT_THE_INPUT)
OPTIONS = {"integrated_gradients": {"steps": STEPS}}
# Its layers without attention mix tokens.
WITH_ATTENTION = [family for family in FAMILIES if family != "Jamba"]
LENGTH, POSITION, SPAN, PAIR = 7, 3, (3, 6), (3, 8)
# Their masks overflow in float64, in the model's own forward pass.
SINGLE_PRECISION = ("Bloom", "MPT", "Gemma2")


def compute_span(logits: Tensor, ids: Tensor, _chosen: int) -> Tensor:
    chances = logits.log_softmax(-1)
    return torch.stack([chances[at - 1, ids[at]] for at in range(*SPAN)]).sum()


CASES = {
    "next token": (
        {},
        lambda logits, _ids, chosen: logits[-1, chosen],
        {LENGTH - 1: 1.0},
    ),
    "contrast in the middle": (
        {
            "target": targets.token(POSITION, PAIR[0]),
            "against": targets.token(POSITION, PAIR[1]),
        },
        lambda logits, _ids, _chosen: logits[POSITION, PAIR[0]] - logits[POSITION, PAIR[1]],
        {POSITION: 1.0},
    ),
    "span": (
        {"target": targets.span(*SPAN)},
        compute_span,
        {at - 1: 1 / (SPAN[1] - SPAN[0]) for at in range(*SPAN)},
    ),
}


def check_case(model, family: str, case: str, methods=METHODS, batch: int = 1) -> None:
    """Check the scores of methods against their definitions over the model's own runs."""
    asked, scalar, read = CASES[case]
    eager, ids = copy_eager(model), make_ids(batch, LENGTH)
    explainer, failed = Explainer(model), []
    norm = BRANCH_NORMS.get(family, "")
    for method in methods:
        more = OPTIONS.get(method, {})
        kept = method == "tiba"
        result = explainer.explain(
            {"input_ids": ids}, method=method, keep_evidence=kept, **asked, **more
        )
        for sample, one in enumerate(ids):
            chosen = int(eager(one[None]).logits[0, -1].argmax())
            logit = partial(_read_scalar, scalar, one, chosen)
            oracle = Oracle(eager, one[None], logit, read, norm)
            relevance = [r[sample] for r in result.evidence.relevance] if kept else None
            expected = oracle.compute_scores(method, relevance)
            found = result.scores[sample]
            if method not in ("whence", "tiba", "gae"):  # whose negative evidence may be all
                assert expected.abs().max() > 0, method
            # Some models compute norms or attention in float32.
            error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-9))
            if not error < 1e-4:
                failed.append(f"{method}, sample {sample}: off by {error:.1e}")
    assert not failed, failed


def _read_scalar(scalar, ids: Tensor, chosen: int, logits: Tensor) -> Tensor:
    return scalar(logits, ids, chosen)


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_next_token(family):
    check_case(build(family), family, "next token")


@pytest.mark.parametrize("family", WITH_ATTENTION)
@pytest.mark.parametrize("case", ["contrast in the middle", "span"])
def test_targets(family, case):
    quick = ("whence", "tiba", "gae", "attnlrp")
    check_case(build(family), family, case, quick)


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_ATTENTION)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_everything(family, attention, case):
    if attention == "eager" or family not in EAGER_ONLY:
        check_case(build(family, attention=attention), family, case, batch=2)
    else:
        assert family in FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_tokens_are_next_tokens(family):
    """One pass over the finished text gives what each token's own prefix gives."""
    model, ids, method = build(family), make_ids(1, 5), "attnlrp" if family == "Jamba" else "whence"
    model.generation_config.eos_token_id = None
    explainer = Explainer(model)
    found = explainer.explain_generation({"input_ids": ids}, 2, method).scores[0]
    whole = model.generate(ids, max_new_tokens=2, do_sample=False)
    for row, end in zip(found, (5, 6), strict=True):
        before = {"input_ids": whole[:, :end]}
        expected = explainer.explain(before, int(whole[0, end]), method=method).scores[0]
        assert expected.abs().max() > 0
        assert torch.allclose(row[:end], expected, atol=1e-5 * float(expected.abs().max()))
        assert not row[end:].nan_to_num().any()


# Padding -----------------------------------------------------------------------------------------


def pad(ids: Tensor, length: int, side: str) -> tuple[dict[str, Tensor], list[slice]]:
    """Two texts of which the second is shorter, and where each stands."""
    stop = LENGTH - length if side == "left" else 0
    places = [slice(0, LENGTH), slice(stop, stop + length)]
    inputs = {name: torch.zeros_like(ids) for name in ("input_ids", "attention_mask")}
    inputs["position_ids"] = torch.zeros_like(ids)
    for sample, place in enumerate(places):
        count = place.stop - place.start
        inputs["input_ids"][sample, place] = ids[sample, :count]
        inputs["attention_mask"][sample, place] = 1
        inputs["position_ids"][sample, place] = torch.arange(count)
    return inputs, places


def check_padding(family: str, methods) -> None:
    ids, length = make_ids(2, LENGTH), 5
    model = build(family).float() if family in SINGLE_PRECISION else build(family)
    tolerance = 1e-3 if family in SINGLE_PRECISION else 1e-6
    explainer = Explainer(model)
    knows_positions = "position_ids" in inspect.signature(model.forward).parameters
    for method in methods:
        explain = partial(explainer.explain, method=method, **OPTIONS.get(method, {}))
        texts = [ids[:1], ids[1:, :length]]
        expected = [explain({"input_ids": text}).scores[0] for text in texts]
        for side in ("left", "right"):
            inputs, places = pad(ids, length, side)
            if not knows_positions:
                del inputs["position_ids"]
            result = explain(inputs)
            for sample, (scores, place) in enumerate(zip(expected, places, strict=True)):
                found = result.scores[sample, place]
                error = float((found - scores).abs().max() / scores.abs().max())
                assert error < tolerance, (method, side, sample, error)
                assert found.count_nonzero() == result.scores[sample].count_nonzero(), method


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family):
    check_padding(family, ["occlusion"] if family == "Jamba" else ["whence", "value_zeroing"])


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_padding_changes_nothing_for_any_method(family):
    check_padding(family, METHODS)


def read_last(eager, ids, target: int) -> Plain:
    """What a model itself gives for one sample, read at its last token."""
    with replace_embeddings(eager) as leaves:
        output = eager(ids, output_attentions=True, output_hidden_states=True)
    maps, last = list(output.attentions), ids.shape[1] - 1
    return Plain(
        logit=output.logits[0, target],
        centered=center(output.logits)[0, target],
        maps=maps,
        hidden=list(output.hidden_states[: len(maps)]),
        inputs=leaves[0],
        read={last: 1.0},
        units=list(range(last + 1)),
    )


@pytest.mark.parametrize("family", ["GPTNeoX", "GPTJ", "Phi", "Falcon", "Llama", "GPT2"])
def test_classification_with_padding(family):
    """The last token before the padding is read: another one in each text."""
    model, ids = build(family, "ForSequenceClassification"), make_ids()
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    eager = copy_eager(model)
    plains = [partial(read_last, eager, ids[:1]), partial(read_last, eager, ids[1:, :5])]
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    check_scores(Explainer(model), inputs, plains, target=[0, 1])


# Caches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["GPT2", "Llama", "Mistral", "GPT-OSS", "DeepSeek-V3"])
def test_a_cache_is_read_and_left_alone(family):
    model, ids = build(family), make_ids()
    with torch.no_grad():
        cache = model(ids[:, :3], use_cache=True).past_key_values
    before = [x.clone() for layer in cache.layers for x in (layer.keys, layer.values)]
    explainer = Explainer(model)
    inputs = {"input_ids": ids[:, 3:], "past_key_values": cache, "use_cache": True}
    result = explainer.explain(inputs, method="input_x_gradient")
    whole = explainer.explain({"input_ids": ids}, method="input_x_gradient")
    assert torch.allclose(result.logits, whole.logits)
    assert result.scores.shape == (2, LENGTH - 3)
    for method in (*OF_ATTENTION, "occlusion", "integrated_gradients"):
        with pytest.raises(WhenceError, match=r"[Gg]ive the whole text|attention maps do not lead"):
            explainer.explain(inputs, method=method)
    after = [x for layer in cache.layers for x in (layer.keys, layer.values)]
    assert cache.get_seq_length() == 3
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# Experts and other layers ------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["batched_mm", "grouped_mm"])
@pytest.mark.parametrize("family", ["Mixtral", "GPT-OSS", "DeepSeek-V3"])
def test_experts_in_one_product(family, implementation, monkeypatch):
    """However experts are computed, scores are those of experts one by one."""
    # Torch's own grouped product has no float64.
    monkeypatch.setattr("transformers.integrations.moe._can_use_grouped_mm", lambda *_: False)
    model, inputs = build(family), {"input_ids": make_ids()}
    explainer, classes = Explainer(model), [[3, 5], [7, 5]]
    for method in ("whence", "tiba", "attnlrp", "value_zeroing"):
        model.set_experts_implementation("eager")
        expected = explainer.explain(inputs, classes=classes, method=method).scores
        model.set_experts_implementation(implementation)
        found = explainer.explain(inputs, classes=classes, method=method).scores
        assert expected.abs().max() > 0
        assert torch.allclose(found, expected, atol=1e-6 * float(expected.abs().max())), method


def test_experts_by_torch_itself():
    """The product of transformers' default, in float32."""
    model, inputs = build("Mixtral").float(), {"input_ids": make_ids()}
    explainer = Explainer(model)
    for method in ("whence", "tiba", "attnlrp"):
        model.set_experts_implementation("eager")
        expected = explainer.explain(inputs, method=method).scores
        model.set_experts_implementation("grouped_mm")
        found = explainer.explain(inputs, method=method).scores
        assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max())), method


def test_layers_without_attention():
    """Methods at the input explain Jamba, and methods of attention say why they do not."""
    model, ids = build("Jamba"), make_ids()
    check_case(model, "Jamba", "next token", AT_THE_INPUT)
    for method in OF_ATTENTION:
        with pytest.raises(WhenceError, match="Tokens meet outside of attention"):
            Explainer(model).explain({"input_ids": ids}, method=method)
    assert len(model.model.layers) == LAYERS


def test_the_documentation_lists_what_is_tested_here():
    """Families are equal to definitions, or refused, by the tests above."""
    page = Path(__file__).parents[2] / "docs" / "models.md"
    assert make_table() in page.read_text(), "put tests.families.decoders.make_table() there"
