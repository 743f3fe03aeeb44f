"""Videos, waveforms and spectrograms are recognised, and their axes have names."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.families.media import build_ast, build_video, build_waveform, build_whisper
from whence import Explainer
from whence.explanation.media import Spectrogram, Video, Waveform


@pytest.mark.parametrize("family", ["VideoMAE", "Vivit", "Timesformer", "Timesformer, divided"])
def test_a_video_keeps_its_frames(family):
    model, inputs = build_video(family)
    result = Explainer(model).explain(inputs, 1, method="gae")
    frames = 2 if family == "VideoMAE" else 4
    assert (result.grid, result.axes) == ((frames, 2, 2), ("frame", "row", "column"))
    assert result.heatmap().shape == (2, frames, 16, 16)
    assert result.heatmap((4, 16, 16)).shape == (2, 4, 16, 16)
    clip = result.media[1]
    assert isinstance(clip, Video)
    assert clip.is_stretched
    pixels = inputs["pixel_values"][1]
    expected = (pixels - pixels.min()) / (pixels.max() - pixels.min()) * 255
    assert np.abs(clip.frames - expected.permute(0, 2, 3, 1).numpy()).max() <= 0.51
    assert repr(result[0]).count("1 video") == 1


def test_each_frame_has_the_map_of_its_unit():
    model, inputs = build_video("VideoMAE")
    result = Explainer(model).explain(inputs, 1, method="gae")
    assert torch.equal(result.heatmap((4, 16, 16)), result.heatmap().repeat_interleave(2, 1))


def test_a_spectrogram_of_an_ast_is_not_transposed():
    """The unit whose cell alone is changed is the one whose input gradient changes."""
    model, inputs = build_ast()
    result = Explainer(model).explain(inputs, 1, method="input_x_gradient", gradients="plain")
    assert (result.grid, result.axes) == ((3, 2), ("time", "frequency"))
    leaf = inputs["input_values"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).logits[:, 1].sum(), leaf)
    cells = (gradient * leaf).detach().reshape(2, 3, 4, 2, 4).sum((2, 4))
    assert torch.allclose(result.scores.reshape(2, 3, 2), cells)
    assert result.heatmap().shape == inputs["input_values"].shape
    seen = result.media[0]
    assert isinstance(seen, Spectrogram)
    assert np.allclose(seen.values, inputs["input_values"][0].T)


def test_a_square_spectrogram_has_time_first():
    model, inputs = build_ast(max_length=8)
    assert Explainer(model).explain(inputs, 1, method="gae").axes == ("time", "frequency")


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert", "WavLM"])
def test_a_waveform_has_time(family):
    model, inputs = build_waveform(family)
    result = Explainer(model).explain(inputs, 1, method="gae")
    assert (result.grid, result.axes, result.length) == ((10,), ("time",), 85)
    assert result.heatmap().shape == (2, 85)
    assert result.heatmap(20).shape == (2, 20)
    seen = result.media[1]
    assert isinstance(seen, Waveform)
    assert seen.length == 85
    assert np.allclose(seen.lows, inputs["input_values"][1])
    assert np.allclose(seen.highs, inputs["input_values"][1])


def test_whisper_has_times_over_all_frequencies():
    model, inputs = build_whisper()
    result = Explainer(model).explain(inputs, 1, method="gae")
    assert (result.grid, result.axes, result.length) == ((10,), ("time",), 20)
    assert np.allclose(result.media[0].values, inputs["input_features"][0])


def test_a_tensor_alone_is_named_by_the_model():
    model, inputs = build_waveform("Wav2Vec2")
    assert Explainer(model).explain(inputs["input_values"], 1, method="gae").axes == ("time",)


class Pools(nn.Module):
    """Classes are read from means, without attention."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes
        self.head = nn.Linear(3, 2)

    def forward(self, values):
        return self.head(values.mean(self.axes))


def test_parts_of_a_video_without_tokens_have_frames():
    result = Explainer(Pools((1, 3, 4))).explain(torch.rand(1, 6, 3, 64, 64), 1, method="gradient")
    assert (result.grid, result.axes) == ((6, 8, 8), ("frame", "row", "column"))


def test_other_signals_have_segments_and_images_have_no_media():
    result = Explainer(Pools((2, 3))).explain(torch.rand(1, 3, 64, 64), 1, method="gradient")
    assert (result.axes, result.media) == (("row", "column"), None)
