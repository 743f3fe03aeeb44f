"""Draw the heatmaps of several methods for photos that are drawn at random by a seed.

    python docs/compare_methods.py --data $WHENCE_DATA/imagenet \
        --model $WHENCE_DATA/vit_tiny_in1k_hf --seed 0 --out docs/images/compare-methods.png

Each row has one of twenty photos, explained for the predicted class. Most datasets may not be
redistributed, so the figure has heatmaps alone; with --photos, the photo comes first and heatmaps
lie over it.
"""

import argparse
import io
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from whence import Explanation, datasets, explain, models
from whence._util.files import write_atomically
from whence.benchmark.runner import draw_names
from whence.render.drawing import shorten
from whence.render.maps import list_maps, make_painter

METHODS = {
    "whence": {"method": "whence"},
    "location": {"method": "whence", "reading": "location"},
    "shared_evidence": {"method": "shared_evidence"},
    "tiba": {"method": "tiba"},
    "gae": {"method": "gae"},
}
ROWS = 20
SIDE, GAP, HEADING, CAPTION = 128, 8, 26, 150
INK, GREY = "#1a1a1a", "#6b6b6b"


def draw_panel(explanation: Explanation, row: int, over_photos: bool) -> Image.Image:
    """Draw the heatmap of one photo, over the photo or alone."""
    (one,) = maps = list_maps(explanation, row)
    painter = make_painter(explanation, row, maps)
    painter = painter if over_photos else replace(painter, photo=None)
    return painter.draw(one, (SIDE, SIDE))


def draw_sheet(
    photos: list[Image.Image], model: models.LoadedModel, over_photos: bool
) -> Image.Image:
    """Draw a row for each photo and a column for each method, under its name."""
    found = {name: explain(photos, model=model, **options) for name, options in METHODS.items()}
    first = next(iter(found.values()))
    columns = [*(["photo"] if over_photos else []), *METHODS]
    width = CAPTION + len(columns) * (SIDE + GAP) + GAP
    whole = Image.new("RGB", (width, HEADING + len(photos) * (SIDE + GAP)), "white")
    draw, large, small = ImageDraw.Draw(whole), *map(ImageFont.load_default, (15, 13))
    for column, name in enumerate(columns):
        left = CAPTION + GAP + column * (SIDE + GAP)
        draw.text((left, 5), name, INK, large)
        for row in range(len(photos)):
            top = HEADING + row * (SIDE + GAP)
            if name in found:
                panel = draw_panel(found[name], row, over_photos)
            else:
                seen = first.photos[row].crop
                panel = seen.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            whole.paste(panel, (left, top))
    for row in range(len(photos)):
        explained = first.get_class(row, 0)
        middle = HEADING + row * (SIDE + GAP) + SIDE // 2
        draw.text((GAP, middle - 18), shorten(explained.name, 15, CAPTION - GAP), INK, large)
        draw.text((GAP, middle + 2), explained.percent, GREY, small)
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
    names = draw_names(data.list_names(), ROWS, options.seed)
    model = models.load(options.model, "image", device="cpu")
    whole = draw_sheet([data.read(name).content for name in names], model, options.photos)
    if not options.photos:
        # Heatmaps alone have few colours, which make a small file.
        few = Image.Quantize.MAXCOVERAGE
        whole = whole.quantize(192, few, dither=Image.Dither.NONE)
    png = io.BytesIO()
    whole.save(png, "PNG", optimize=True)
    write_atomically(options.out, png.getvalue())
    print(options.out, *names, sep="\n")


if __name__ == "__main__":
    main()
