"""Padding of a sound, and the other sounds of a batch, change nothing; what holds where."""

import pytest
import torch

from tests.families.media import build_ast, build_waveform, build_whisper
from whence import Explainer

METHODS = ("whence", "gae", "tiba", "rollout", "input_x_gradient")


def pad(inputs, length=61):
    """Two sounds, the second of which ends in padding after so many values."""
    values = inputs["input_values"].clone()
    mask = torch.ones(values.shape, dtype=torch.long)
    mask[1, length:] = 0
    values[1, length:] = 0
    return {"input_values": values, "attention_mask": mask}


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert", "WavLM"])
def test_padding_of_a_waveform_changes_nothing(family):
    """With a mask, and layer norms in the feature extractor."""
    model, inputs = build_waveform(family)
    explainer, batch = Explainer(model), pad(inputs)
    alone = {"input_values": batch["input_values"][1:, :61]}
    for method in METHODS:
        together = explainer.explain(batch, 1, method=method)
        single = explainer.explain(alone, 1, method=method)
        largest = single.scores.abs().max()
        assert torch.allclose(together.logits[1:], single.logits)
        assert torch.allclose(together.scores[1].sum(), single.scores.sum())
        # Scores of the input itself: values that end a sound belong to its last unit, and in a
        # longer one to the unit after it.
        units = single.scores.shape[1] - (method == "input_x_gradient")
        difference = (together.scores[1:, :units] - single.scores[:, :units]).abs().max()
        assert difference <= 1e-6 * largest, method
        assert method == "input_x_gradient" or not together.scores[1, units:].any()


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert"])
def test_a_group_norm_hears_the_padding(family):
    """Such a model itself answers otherwise, as its norm is over all of the time, padding too.

    The explanation is that of the answer: its logits are the model's own.
    """
    model, inputs = build_waveform(family, "group")
    batch = pad(inputs)
    with torch.no_grad():
        own = model(**batch).logits
        alone = model(batch["input_values"][1:, :61]).logits
    assert (own[1:] - alone).abs().max() > 1e-3
    result = Explainer(model).explain(batch, 1)
    assert torch.allclose(result.logits, own)
    # What the mask says is padding has no evidence.
    assert result.scores[1, 8:].abs().max() == 0


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_other_sounds_of_a_batch_change_nothing(norm):
    model, inputs = build_waveform("Wav2Vec2", norm)
    explainer = Explainer(model)
    together = explainer.explain(inputs, 1)
    alone = explainer.explain({"input_values": inputs["input_values"][1:]}, 1)
    assert torch.allclose(together.scores[1:], alone.scores)


@pytest.mark.parametrize("build", [build_ast, build_whisper])
def test_other_spectrograms_of_a_batch_change_nothing(build):
    """Extractors pad spectrograms to one length, without a mask: the padding is part of them."""
    model, inputs = build()
    ((name, values),) = inputs.items()
    explainer = Explainer(model)
    for method in METHODS:
        together = explainer.explain(inputs, 1, method=method)
        alone = explainer.explain({name: values[1:]}, 1, method=method)
        assert torch.allclose(together.scores[1:], alone.scores), method
