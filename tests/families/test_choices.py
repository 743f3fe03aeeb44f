"""Multiple choice: ids of (batch, choices, tokens), of which the target reads one choice."""

import pytest
import torch

from tests.families.models import TEXT, build_transformers, make_ids
from whence import Explainer

CHOICES = 3


@pytest.fixture(scope="module")
def model():
    return build_transformers("BertForMultipleChoice", "BertConfig", **TEXT)


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "input_x_gradient"])
def test_a_choice_is_explained_as_if_it_were_alone(model, method):
    """Choices do not meet before their logits compete."""
    ids, explainer = make_ids(2 * CHOICES).reshape(2, CHOICES, -1), Explainer(model)
    result = explainer.explain({"input_ids": ids}, [2, 0], method=method)
    found = result.scores.reshape(2, CHOICES, -1)
    for sample, choice in enumerate((2, 0)):
        for n in range(CHOICES):
            # Of a choice less the mean of all, what speaks for another one speaks against it.
            share = float(n == choice) - (1 / CHOICES if method == "whence" else 0)
            alone = {"input_ids": ids[sample, n][None, None]}
            expected = explainer.explain(alone, 0, method=method).scores[0]
            assert expected.any()
            assert torch.allclose(found[sample, n], share * expected, rtol=1e-6, atol=1e-12)


def test_a_choice_by_its_gradient(model):
    ids = make_ids(2 * CHOICES).reshape(2, CHOICES, -1)
    words = model.get_input_embeddings()(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=words).logits[:, 1].sum(), words)
    found = Explainer(model).explain({"input_ids": ids}, 1, method="input_x_gradient").scores
    assert torch.allclose(found, (words * gradient).sum(-1).flatten(1), rtol=1e-5, atol=1e-9)
