import numpy as np
import pytest

from whence import WhenceError
from whence.render.colors import (
    get_colormap,
    lab_to_srgb,
    lch_to_lab,
    list_colormaps,
    measure_contrast,
    srgb_to_lab,
    to_hex,
)

SEQUENTIAL = ("heat", "lagoon")
# What dichromats see, in linear sRGB: Viénot, Brettel and Mollon (1999).
PROTANOPIA = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPIA = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def simulate_vision(rgb, vision):
    rgb = rgb / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ vision.T, 0, 1)
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def test_oklab_of_known_colors():
    # Published by Ottosson's own converter.
    known = {
        (255, 255, 255): (1.0, 0.0, 0.0),
        (255, 0, 0): (0.62796, 0.22486, 0.12585),
        (0, 0, 255): (0.45201, -0.03246, -0.31153),
    }
    for rgb, lab in known.items():
        assert srgb_to_lab(np.array(rgb) / 255) == pytest.approx(lab, abs=2e-4)


def test_oklab_there_and_back():
    rgb = np.random.default_rng(0).random((100, 3))
    assert lab_to_srgb(srgb_to_lab(rgb)) == pytest.approx(rgb, abs=1e-6)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_lightness_rises_evenly(name):
    lightness = srgb_to_lab(get_colormap(name, signed=False)(np.linspace(0, 1, 101)) / 255)[:, 0]
    steps = np.diff(lightness)
    assert (steps > 0).all()
    assert lightness[-1] - lightness[0] > 0.65
    assert steps == pytest.approx(np.full(100, steps.mean()), abs=0.004)  # bytes are coarse


@pytest.mark.parametrize("vision", [PROTANOPIA, DEUTERANOPIA])
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_order_survives_color_blindness(name, vision):
    colors = get_colormap(name, signed=False)(np.linspace(0, 1, 21))
    assert (np.diff(srgb_to_lab(simulate_vision(colors, vision))[:, 0]) > 0).all()


def test_diverging_is_symmetric_about_white():
    colormap = get_colormap("balance", signed=True)
    shares = np.linspace(0, 1, 41)
    plus, minus = (srgb_to_lab(colormap(sign * shares) / 255) for sign in (1, -1))
    assert plus[:, 0] == pytest.approx(minus[:, 0], abs=0.004)
    chroma = [np.hypot(side[:, 1], side[:, 2]) for side in (plus, minus)]
    assert chroma[0] == pytest.approx(chroma[1], abs=0.004)
    assert (np.diff(plus[:, 0]) < 0).all()
    middle = colormap(0.0)
    assert middle.min() >= 245
    assert np.ptp(middle.astype(int)) <= 1
    red, _, blue = (int(channel) for channel in colormap(1.0))
    assert red > blue + 100
    red, _, blue = (int(channel) for channel in colormap(-1.0))
    assert blue > red + 100


@pytest.mark.parametrize("vision", [PROTANOPIA, DEUTERANOPIA])
def test_signs_stay_apart_in_color_blindness(vision):
    plus, minus = get_colormap("balance", signed=True)([0.5, -0.5])
    apart = srgb_to_lab(simulate_vision(plus, vision)) - srgb_to_lab(simulate_vision(minus, vision))
    assert np.linalg.norm(apart) > 0.1


@pytest.mark.parametrize("name", [*SEQUENTIAL, "balance"])
def test_no_color_is_clipped(name):
    colormap = get_colormap(name, signed=False)
    channels = lch_to_lab(colormap.anchors).T
    places = np.linspace(0, len(colormap.anchors) - 1, 500)
    lab = [np.interp(places, range(len(colormap.anchors)), channel) for channel in channels]
    rgb = lab_to_srgb(np.stack(lab, -1))
    assert rgb.min() >= 0
    assert rgb.max() <= 1


def test_values_out_of_range_get_the_ends():
    colormap = get_colormap("heat", signed=False)
    assert (colormap([-3.0, 7.0]) == colormap([0.0, 1.0])).all()


def test_the_map_suits_the_sign():
    assert get_colormap("auto", signed=False).name == "heat"
    assert get_colormap("auto", signed=True).name == "balance"
    assert list_colormaps() == ["auto", "heat", "lagoon", "balance"]
    with pytest.raises(WhenceError, match="no colormap 'jet'; there are auto, heat"):
        get_colormap("jet", signed=False)
    with pytest.raises(WhenceError, match="both signs, which the colormap 'heat' cannot show"):
        get_colormap("heat", signed=True)


def test_contrast_is_that_of_wcag():
    assert measure_contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert measure_contrast((10, 20, 30), (10, 20, 30)) == 1
    assert measure_contrast((255, 255, 255), (118, 118, 118)) == pytest.approx(4.54, abs=0.005)
    assert to_hex((255, 0, 10)) == "#ff000a"
