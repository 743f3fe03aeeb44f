"""Language models: the next token's logit is read at the last token, itself part of the input."""

from functools import partial

import pytest
import torch

from tests.families.decoders import FAMILIES, build
from tests.families.formulas import Plain
from tests.families.models import check_scores, copy_eager, make_ids, replace_embeddings
from whence import Explainer

# Layers without attention mix tokens.
WITH_ATTENTION = [family for family in FAMILIES if family != "Jamba"]


def run(eager, ids, target: int) -> Plain:
    """Run a model on one sample; the logit is read at its last token."""
    with replace_embeddings(eager) as leaves:
        output = eager(ids, output_attentions=True, output_hidden_states=True)
    logits = output.logits if output.logits.dim() == 2 else output.logits[:, -1]
    maps, last = list(output.attentions), ids.shape[1] - 1
    return Plain(
        logit=logits[0, target],
        maps=maps,
        hidden=list(output.hidden_states[: len(maps)]),
        inputs=leaves[0],
        read={last: 1.0},
        units=list(range(last + 1)),
    )


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_next_token(family):
    model, ids = build(family), make_ids()
    eager = copy_eager(model)
    plains = [partial(run, eager, one) for one in ids.split(1)]
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    check_scores(explainer, {"input_ids": ids}, plains, target=[3, 7])


@pytest.mark.parametrize("family", ["GPTNeoX", "GPTJ", "Phi", "Falcon", "Llama", "GPT2"])
def test_classification_with_padding(family):
    """The last token before the padding is read: another one in each text."""
    model, ids = build(family, "ForSequenceClassification"), make_ids()
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    eager = copy_eager(model)
    plains = [partial(run, eager, ids[:1]), partial(run, eager, ids[1:, :5])]
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    check_scores(Explainer(model), inputs, plains, target=[0, 1])


@pytest.mark.parametrize("implementation", ["batched_mm", "grouped_mm"])
@pytest.mark.parametrize("family", ["Mixtral", "GPT-OSS", "DeepSeek-V3"])
def test_experts_in_one_product(family, implementation, monkeypatch):
    """However experts are computed, scores are those of experts one by one."""
    # Torch's own grouped product has no float64.
    monkeypatch.setattr("transformers.integrations.moe._can_use_grouped_mm", lambda *_: False)
    model, inputs = build(family), {"input_ids": make_ids()}
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    classes = [[3, 5], [7, 5]]
    for method in ("whence", "tiba", "attnlrp", "value_zeroing"):
        model.set_experts_implementation("eager")
        expected = explainer.explain(inputs, classes=classes, method=method).scores
        model.set_experts_implementation(implementation)
        found = explainer.explain(inputs, classes=classes, method=method).scores
        assert expected.abs().max() > 0
        assert torch.allclose(found, expected, atol=1e-6 * float(expected.abs().max())), method


def test_experts_by_torch_itself():
    """The product of transformers' default, in float32."""
    model, ids = build("Mixtral").float(), make_ids()
    eager = copy_eager(model)
    model.set_experts_implementation("grouped_mm")
    plains = [partial(run, eager, one) for one in ids.split(1)]
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    check_scores(explainer, {"input_ids": ids}, plains, target=[3, 7], tolerance=1e-3)
