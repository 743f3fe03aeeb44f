"""Make the pictures of boxes and segments, of toys that are trained in about two minutes.

python docs/dense_pictures.py
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.dense import LABELS, SIDE, Drawing, draw_shapes, train  # noqa: E402

from whence import Explainer, Explanation, targets  # noqa: E402
from whence.explanation import Photo  # noqa: E402

IMAGES = Path(__file__).parent / "images"
SIZE, WIDTH = (384, 384), 1344


def choose_drawing(seed: int = 7) -> Drawing:
    """The first drawing that has one shape of each kind."""
    random = np.random.default_rng(seed)
    drawings = (draw_shapes(random) for _ in range(1000))
    return next(one for one in drawings if sorted(one.labels) == list(range(len(LABELS))))


def save(result: Explanation, drawing: Drawing, name: str) -> None:
    """Draw the result on the drawing, enlarged without smoothing."""
    result.photos = [Photo.from_crop(drawing.image.resize(SIZE, 0))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figure.png"
        result.plot().save(file)
        picture = Image.open(file).convert("RGB")
    picture.thumbnail((WIDTH, WIDTH))
    picture.save(IMAGES / f"{name}.jpg", quality=88)


def draw_boxes(model: nn.Module, drawing: Drawing) -> None:
    """The most confident box of each kind of shape, by the default method."""
    boxes = [targets.box(label=name) for name in LABELS]
    result = Explainer(model).explain(drawing.pixels[None], classes=boxes)
    save(result, drawing, "boxes")


def draw_segments(model: nn.Module, drawing: Drawing) -> None:
    """All places that the model gives to two kinds of shapes, and one place of the first."""
    explainer = Explainer(model)
    left, top, right, bottom = drawing.boxes[drawing.labels.index(LABELS.index("ball"))]
    row, column = (top + 3 * bottom) / 4 / SIDE, (left + right) / 2 / SIDE
    asked = [targets.pixel(label="ball"), targets.pixel(label="crate"), targets.pixel(row, column)]
    result = explainer.explain(drawing.pixels[None], classes=asked, method="tiba")
    save(result, drawing, "segments")


if __name__ == "__main__":
    torch.set_num_threads(1)
    drawn = choose_drawing()
    draw_boxes(train("detector"), drawn)
    draw_segments(train("segmenter"), drawn)
