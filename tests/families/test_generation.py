"""Generation in every family of causal language models: batches with padding, one pass for all."""

import pytest
import torch

from tests.families.decoders import FAMILIES, build
from whence import Explainer

# Prompts of different lengths.
IDS = torch.tensor([[0, 0, 5, 9, 4, 11], [7, 12, 3, 8, 6, 10]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
STEPS = 3


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_gives_what_each_cut_text_gives(family):
    model = build(family)
    explainer = Explainer(model)
    # Whatever ends a text is not generated, so that all have the same length.
    inputs, ends = {"input_ids": IDS, "attention_mask": MASK}, {"eos_token_id": []}
    method = "input_x_gradient" if family == "Jamba" else "whence"
    generation = explainer.explain_generation(inputs, STEPS, method=method, **ends)
    for sample in range(2):
        prompt = IDS[sample][MASK[sample].bool()]
        text = torch.cat([prompt, generation.target[sample]])
        for step in range(STEPS):
            cut = text[None, : len(prompt) + step]
            token = int(text[len(prompt) + step])
            logits = model(cut).logits[0, -1]
            assert float(logits.max()) == pytest.approx(float(logits[token]), rel=1e-3)
            alone = explainer.explain({"input_ids": cut}, target=token, method=method).scores[0]
            row = generation.scores[sample, step]
            scale = float(alone.abs().max())
            assert torch.allclose(row[: len(alone)], alone, atol=1e-5 * scale, rtol=0)
            assert not row[len(alone) :].any()
