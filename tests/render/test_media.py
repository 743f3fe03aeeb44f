"""Figures, pages and animations of videos and sounds."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from whence import Explanation, WhenceError
from whence.explanation.media import Spectrogram, Video, Waveform
from whence.render.comparison import draw_comparison
from whence.render.display import show
from whence.render.drawing import Picture, TextLine
from whence.render.maps import list_maps, make_painter
from whence.render.media import draw_sound, list_frames, place_frames


def explain(scores, grid, axes, media, names=("a", "b"), **fields):
    classes = len(scores)
    return Explanation(
        torch.as_tensor(scores).float().reshape(1, classes, -1),
        torch.arange(classes)[None],
        torch.tensor([[2.0, 0.0, -1.0]]),
        grid=grid,
        axes=axes,
        media=[media],
        target_names=[list(names[:classes])],
        method="whence",
        **fields,
    )


def explain_video(frames=4, units=2):
    """The map of each unit is high in one corner: the upper left, then the lower right."""
    pixels = torch.full((frames, 3, 8, 8), 0.5)
    scores = torch.zeros(1, units, 2, 2)
    scores[0, 0, 0, 0] = scores[0, 1:, 1, 1] = 1
    media = Video.from_pixels(pixels)
    return explain(scores, (units, 2, 2), ("frame", "row", "column"), media, image_size=(8, 8))


def explain_wave():
    scores = np.zeros((1, 10))
    scores[0, 2] = 1
    wave = Waveform.from_values(torch.randn(500), 2.0)
    return explain(scores, (10,), ("time",), wave, length=500)


def explain_spectrogram():
    """The map is high at the start, in the lower half."""
    scores = np.zeros((2, 4, 2))
    scores[:, 0, 0] = 1
    values = torch.zeros(8, 16)
    values[0] = 1  # the lowest frequency
    media = Spectrogram.from_values(values)
    return explain(scores, (4, 2), ("time", "frequency"), media, image_size=(16, 8))


def measure_color(image):
    """How colourful pixels are: (height, width)."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    return pixels.max(-1) - pixels.min(-1)


def test_maps_lie_on_the_frames():
    result = explain_video()
    maps = list_maps(result)
    drawn = measure_color(make_painter(result, 0, maps).draw(maps[0], (204, 100)))
    first, second = drawn[:, :100], drawn[:, 104:]
    assert first[20, 20] > 50
    assert second[80, 80] > 50
    assert first[80, 80] < 20
    assert second[20, 20] < 20


def test_frames_stand_in_rows_of_eight():
    places = list(place_frames(10, (8 * 24 - 4, 2 * 24 - 4)))
    assert places[0] == (0, 0, 20, 20)
    assert places[7] == (168, 0, 20, 20)
    assert places[9] == (24, 24, 20, 20)


def test_a_unit_is_shown_by_its_middle_frame():
    pixels = torch.linspace(0, 1, 6)[:, None, None, None].expand(6, 3, 4, 4)
    shown = [np.asarray(one)[0, 0, 0] for one in list_frames(Video.from_pixels(pixels), 2)]
    assert shown == [51, 204]


def test_low_frequencies_are_drawn_below():
    result = explain_spectrogram()
    picture = np.asarray(draw_sound(result.media[0], (160, 80)).convert("L")).astype(int)
    assert picture[-3].mean() < picture[3].mean() - 100
    maps = list_maps(result)
    drawn = measure_color(make_painter(result, 0, maps).draw(maps[0], (160, 80)))
    assert drawn[70, 10] > 50
    assert drawn[10, 10] < 20
    assert drawn[70, 150] < 20


def test_a_waveform_is_as_high_as_its_values():
    values = torch.zeros(1000)
    values[500:] = torch.sin(torch.arange(500.0))
    picture = np.asarray(draw_sound(Waveform.from_values(values), (200, 100)).convert("L"))
    inked = (picture < 128).sum(0)
    assert inked[10:90].max() <= 2
    assert inked[110:190].min() > 60


@pytest.mark.parametrize(
    ("make", "texts"),
    [
        (explain_video, ["Frames", "a"]),
        (explain_wave, ["Waveform", "0 s", "2 s", "a"]),
        (explain_spectrogram, ["Spectrogram", "start", "16 steps", "a", "b"]),
    ],
)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_say_what_they_show(make, texts, theme):
    figure = make().plot(theme=theme)
    written = [shape.text for shape in figure.shapes if isinstance(shape, TextLine)]
    assert set(texts) <= set(written)
    pictures = [shape for shape in figure.shapes if isinstance(shape, Picture)]
    assert all(one.x >= 0 and one.x + one.width <= figure.width for one in pictures)
    assert figure.to_image().size == (round(figure.width), round(figure.height))


def test_an_unknown_scale_of_colours_is_said():
    result = explain_video()
    result.media = [Video.from_pixels(torch.randn(4, 3, 8, 8), is_stretched=True)]
    written = [one.text for one in result.plot().shapes if isinstance(one, TextLine)]
    assert "Frames (contrast stretched)" in written


def test_a_gif_has_every_frame(tmp_path):
    result = explain_video(frames=6, units=3)
    result.save(tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 6
        assert image.info["loop"] == 0
        frames = []
        for number in range(6):
            image.seek(number)
            frames.append(measure_color(image))
    height, width = frames[0].shape
    # The map stands in the right half: high at the upper left at first, later at the lower right.
    left = slice(width // 2 + 20, int(width * 0.72)), slice(int(width * 0.78), width - 40)
    upper, lower = slice(80, height // 3), slice(height // 2, int(height * 0.75))
    assert frames[0][upper, left[0]].max() > frames[5][upper, left[0]].max() + 40
    assert frames[5][lower, left[1]].max() > frames[0][lower, left[1]].max() + 40


@pytest.mark.parametrize("make", [explain_wave, explain_spectrogram])
def test_a_gif_is_for_videos(make, tmp_path):
    with pytest.raises(WhenceError, match="is for videos"):
        make().save(tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


def test_a_video_whose_frames_are_not_known_has_no_gif(tmp_path):
    result = explain_video()
    result.media = None
    with pytest.raises(WhenceError, match="not known"):
        result.save(tmp_path / "a.gif")
    result.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").is_file()


@pytest.mark.parametrize("make", [explain_video, explain_wave, explain_spectrogram])
def test_pages_need_nothing_outside(make):
    result = make()
    page = result.to_html()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("data:image/gif") == (1 if make is explain_video else 0)
    assert page.count("<figure>") == 1 + len(result.classes())
    assert result._repr_html_().count("<figure>") == 1 + len(result.classes())


@pytest.mark.parametrize("make", [explain_video, explain_wave, explain_spectrogram])
def test_a_terminal_shows_a_map(make):
    stream = io.StringIO()
    show(make(), console=Console(file=stream, width=80))
    assert "█" in stream.getvalue()


def test_a_sentence_says_when():
    scores = np.zeros((1, 60))
    scores[0, 12:18] = 1
    wave = explain(
        scores, (60,), ("time",), Waveform.from_values(torch.randn(100), 2.0), length=100
    )
    assert "10% of the sound holds all of the evidence, around 0.50 s" in wave.describe()
    scores = np.zeros((1, 10, 10))
    scores[0, 7:9, 8:] = 1
    media = Spectrogram.from_values(torch.randn(10, 10))
    heard = explain(scores, (10, 10), ("time", "frequency"), media, image_size=(10, 10))
    assert "around 80% of its length at high frequencies" in heard.describe()
    assert explain_video().describe().count("evidence") == 0


@pytest.mark.parametrize("make", [explain_video, explain_wave, explain_spectrogram])
def test_methods_are_compared(make):
    figure = draw_comparison({"one": make(), "other": make()})
    written = [shape.text for shape in figure.shapes if isinstance(shape, TextLine)]
    assert {"one", "other"} <= set(written)
    named = {"Frames", "Waveform", "Spectrogram"} & set(written)
    assert len(named) == 1
