"""The figure of the command line lies where the model looked, as `plot` draws it."""

from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import run_explain
from tests.render.test_maps import find_peak
from whence import Explanation, explain, methods
from whence.methods import registry
from whence.methods.shared.inputs import sum_over_tokens
from whence.render.drawing import Picture

# A white square in a wide photo; the model resizes to 36 pixels high and sees the middle 32.
WIDTH, HEIGHT, SQUARE = 216, 108, (120, 30, 138, 48)


@pytest.fixture
def brightness(monkeypatch):
    """A method that scores how bright each patch is, so that the peak is known."""
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @methods.register("brightness")
    @dataclass(frozen=True)
    class Brightness(methods.Method):
        needs = ("inputs", "input_gradient")

        def __call__(self, evidence):
            (pixels,), (gradient,) = evidence.inputs, evidence.input_gradient
            return sum_over_tokens(evidence, [pixels - pixels.min() + 0 * gradient])

    return "brightness"


def test_notebook_and_command_line_show_the_square(cropping_vit, brightness, tmp_path):
    photo = Image.new("RGB", (WIDTH, HEIGHT), (60, 60, 60))
    photo.paste((255, 255, 255), SQUARE)
    photo.save(tmp_path / "square.png")
    asked = ("--model", cropping_vit.name, "--method", brightness, "--out", tmp_path / "out")
    run_explain(tmp_path / "square.png", *asked)
    result = explain(tmp_path / "square.png", cropping_vit, method=brightness)
    figure = result.plot(title="square")
    # What the model saw: 96 of 216 x 108 pixels, from (60, 6) on.
    middle = ((SQUARE[0] + SQUARE[2]) / 2, (SQUARE[1] + SQUARE[3]) / 2)
    patch = 0.5 / result.grid[0]
    on_seen = ((middle[0] - 60) / 96, (middle[1] - 6) / 96)
    assert find_peak(figure, 1, 1.0) == pytest.approx(on_seen, abs=patch)
    on_whole = (middle[0] / WIDTH, middle[1] / HEIGHT)
    whole = find_peak(result.plot(whole=True), 1, 2.0)
    assert whole == pytest.approx(on_whole, abs=patch * 96 / WIDTH)
    drawn = np.asarray(Image.open(tmp_path / "out" / "square.png").convert("RGB"))
    assert np.array_equal(drawn, np.asarray(figure.to_image(2.0)))
    again = Explanation.load(tmp_path / "out" / "square.safetensors").plot()
    assert find_peak(again, 1, 1.0) == pytest.approx(on_seen, abs=patch)
    assert len([one for one in again.shapes if isinstance(one, Picture)]) == 3
