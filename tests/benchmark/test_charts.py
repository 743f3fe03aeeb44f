import io

import numpy as np
from PIL import Image

from whence.benchmark import build_protocol
from whence.benchmark.charts import average_curves, draw_chart
from whence.benchmark.columns import to_columns

COLUMN = "negative_predicted_logit"


def results_of(*methods):
    return {
        name: to_columns([{"sample": str(n), COLUMN: [-1.0 * n * at] * 10} for n in range(3)])
        for at, name in enumerate(methods)
    }


def colors_of(png):
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, 3)
    return {"#" + bytes(color).hex() for color in np.unique(pixels, axis=0)}


def test_curves_are_means():
    results = results_of("a", "b", "c")
    curves = build_protocol("perturbation", {}).list_curves(results)
    (means,) = filter(None, (average_curves(curve, results) for curve in curves))
    assert {name: line.tolist() for name, line in means.items()} == {
        "a": [0.0] * 10,
        "b": [-1.0] * 10,
        "c": [-2.0] * 10,
    }


def test_each_method_has_a_line_of_its_color():
    results = results_of("a", "$b", "c")
    curves = build_protocol("perturbation", {}).list_curves(results)
    colors = colors_of(draw_chart(curves, results, "A title with $ signs, 100 $"))
    assert {"#0072b2", "#d55e00", "#009e73"} <= colors
    assert "#cc79a7" not in colors


def test_many_methods_and_nothing_to_draw():
    results = results_of(*(f"method:option={n}" for n in range(30)))
    curves = build_protocol("perturbation", {}).list_curves(results)
    assert draw_chart(curves, results, "Many") is not None
    assert draw_chart([], results, "A title") is None
