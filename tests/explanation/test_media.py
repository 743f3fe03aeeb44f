"""Videos and sounds that an explanation keeps: bounded in size, saved and selected."""

import numpy as np
import pytest
import torch

from whence import Explanation, WhenceError
from whence.explanation.heatmaps import arrange_picture
from whence.explanation.media import Spectrogram, Video, Waveform, decode_media, encode_media


def explain(media, grid, axes, **fields):
    scores = torch.arange(float(np.prod(grid)))[None].repeat(len(media), 1)
    target, logits = torch.zeros(len(media)).long(), torch.zeros(len(media), 2)
    return Explanation(scores, target, logits, grid=grid, axes=axes, media=media, **fields)


def make_all():
    return [
        explain(
            [Video.from_pixels(torch.rand(3, 3, 8, 8)) for _ in range(2)],
            (3, 2, 2),
            ("frame", "row", "column"),
        ),
        explain([Waveform.from_values(torch.randn(50), 1.5)], (5,), ("time",), length=50),
        explain([Spectrogram.from_values(torch.randn(4, 6))], (3, 2), ("time", "frequency")),
    ]


@pytest.mark.parametrize("kind", range(3))
def test_all_is_read_again(tmp_path, kind):
    result = make_all()[kind]
    result.save(tmp_path / "a.safetensors")
    again = Explanation.load(tmp_path / "a.safetensors")
    assert (again.grid, again.axes, again.length) == (result.grid, result.axes, result.length)
    for one, other in zip(again.media, result.media, strict=True):
        assert type(one) is type(other)
        for name, value in vars(other).items():
            assert np.array_equal(getattr(one, name), value)


def test_samples_take_their_media_with_them():
    result = make_all()[0]
    assert np.array_equal(result[1].media[0].frames, result.media[1].frames)


def test_a_long_waveform_is_kept_by_its_extremes():
    values = torch.randn(100_000)
    wave = Waveform.from_values(values)
    assert len(wave.lows) == len(wave.highs) == 2048
    assert wave.lows.min() == values.min()
    assert wave.highs.max() == values.max()
    part = values[: 100_000 // 2048]
    assert wave.highs[0] == part.max()
    assert wave.lows[0] == part.min()


def test_large_frames_and_spectrograms_are_made_smaller():
    assert Video.from_pixels(torch.rand(2, 3, 512, 300)).frames.shape == (2, 256, 150, 3)
    spectrogram = Spectrogram.from_values(torch.ones(300, 5000))
    assert spectrogram.values.shape == (256, 2048)
    assert spectrogram.length == 5000
    assert np.allclose(spectrogram.values, 1)


def test_grey_frames_are_grey():
    frames = Video.from_pixels(torch.rand(2, 1, 4, 4)).frames
    assert np.array_equal(frames[..., 0], frames[..., 2])


@pytest.mark.parametrize(
    "change",
    [
        lambda facts, tensors: ([], tensors),
        lambda facts, tensors: ([{**facts[0], "kind": "smell"}], tensors),
        lambda facts, tensors: (facts, {"media.0": tensors["media.0"] * torch.nan}),
    ],
)
def test_damaged_media_are_refused(change):
    saved = encode_media([Spectrogram.from_values(torch.randn(4, 6))])
    with pytest.raises(ValueError, match=r"samples|smell|finite"):
        decode_media(*change(*saved), 1)
    assert len(decode_media(*saved, 1)) == 1


def test_time_goes_to_the_right_and_low_frequencies_are_below():
    scores = np.arange(6.0)  # (time, frequency) = (3, 2)
    picture = arrange_picture(scores, (3, 2), ("time", "frequency"))
    assert picture.tolist() == [[1, 3, 5], [0, 2, 4]]
    turned = arrange_picture(scores, (2, 3), ("frequency", "time"))
    assert turned.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert arrange_picture(scores, (6,), ("time",)).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_table_names_the_axes():
    tables = [result.to_pandas() for result in make_all()]
    assert [list(table.columns[3:]) for table in tables] == [
        ["frame", "row", "column", "x", "y", "score"],
        ["time", "score"],
        ["time", "frequency", "score"],
    ]


@pytest.mark.parametrize(("kind", "size"), [(0, 5), (0, (1, 2, 3, 4)), (1, (2, 2)), (1, 0), (2, 3)])
def test_a_size_that_does_not_fit_is_refused(kind, size):
    with pytest.raises(WhenceError, match="A size"):
        make_all()[kind].heatmap(size)
    assert make_all()[kind].heatmap().dim() == (4, 2, 3)[kind]


def test_heatmaps_of_signals_are_linear():
    heat = make_all()[1].heatmap()
    assert heat.shape == (1, 50)
    inner = heat[0, 5:45]
    assert torch.allclose(inner.diff(), torch.full((39,), 0.1), atol=1e-5)
