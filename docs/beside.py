"""Make the figure of methods beside each other on photos that nobody picked.

    python docs/beside.py --data $WHENCE_DATA/imagenet --model $WHENCE_DATA/vit_tiny_in1k_hf \
        --seed 0 --out docs/images/beside.png

Ten photos are drawn at random by the seed, one in each row, and explained for the predicted class.
Datasets may mostly not be redistributed, so there are maps alone; with --photos, the photo comes
first and maps lie over it.
"""

import argparse
import io
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from whence import Explanation, datasets, explain, models, render
from whence._util.files import write_whole
from whence.benchmark.hashes import drawn
from whence.render.drawing import shorten

METHODS = ("whence", "tiba", "gae", "rollout")
ROWS = 10
SIDE, GAP, HEADING, CAPTION = 128, 8, 26, 150
INK, GREY = "#1a1a1a", "#6b6b6b"
GROUND = "#17181c"  # as dark as the colour of the lowest scores, so that maps grow lighter


def panel(photo: Image.Image | None, explanation: Explanation, row: int) -> Image.Image:
    """The map of one photo, over the photo or alone."""
    assert explanation.grid is not None
    scores = explanation.scores[row].reshape(explanation.grid)
    if photo is None:
        return render.overlay(Image.new("RGB", (SIDE, SIDE), GROUND), scores, opacity=1.0)
    return render.overlay(photo, scores)


def sheet(photos: list[Image.Image], model: models.LoadedModel, over_photos: bool) -> Image.Image:
    """A row for each photo and a column for each method, under their names."""
    shown: list[Image.Image | None] = [None] * len(photos)
    if over_photos:
        seen = model.prepare(photos).shown
        shown = [photo.resize((SIDE, SIDE), Image.Resampling.LANCZOS) for photo in seen]
    found = {name: explain(photos, model=model, method=name) for name in METHODS}
    columns = [*(["photo"] if over_photos else []), *METHODS]
    width = CAPTION + len(columns) * (SIDE + GAP) + GAP
    whole = Image.new("RGB", (width, HEADING + len(photos) * (SIDE + GAP)), "white")
    draw, large, small = ImageDraw.Draw(whole), *map(ImageFont.load_default, (15, 13))
    for column, name in enumerate(columns):
        left = CAPTION + GAP + column * (SIDE + GAP)
        draw.text((left, 5), name, INK, large)
        for row, photo in enumerate(shown):
            top = HEADING + row * (SIDE + GAP)
            whole.paste(panel(photo, found[name], row) if name in found else photo, (left, top))
    for row in range(len(photos)):
        told = found[METHODS[0]].get_class(row, 0)
        middle = HEADING + row * (SIDE + GAP) + SIDE // 2
        draw.text((GAP, middle - 18), shorten(told.name, 15, CAPTION - GAP), INK, large)
        draw.text((GAP, middle + 2), told.percent, GREY, small)
    return whole


def main() -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a dataset of photos")
    parser.add_argument("--model", help="an image classifier; the embedded one if left out")
    parser.add_argument("--seed", type=int, default=0, help="which photos are drawn")
    parser.add_argument("--photos", action="store_true", help="show the photos, too")
    parser.add_argument("--out", type=Path, required=True, help="the PNG file to write")
    options = parser.parse_args()
    data = datasets.load(options.data)
    names = drawn(data.names(), ROWS, options.seed)
    model = models.load(options.model, "image", device="cpu")
    whole = sheet([data.read(name).content for name in names], model, options.photos)
    if not options.photos:
        # Maps alone have few colours, which make a small file.
        few = Image.Quantize.MAXCOVERAGE
        whole = whole.quantize(192, few, dither=Image.Dither.NONE)
    png = io.BytesIO()
    whole.save(png, "PNG", optimize=True)
    write_whole(options.out, png.getvalue())
    print(options.out, *names, sep="\n")


if __name__ == "__main__":
    main()
