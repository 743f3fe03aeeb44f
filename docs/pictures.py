"""Make the pictures of the README and the documentation, and the table of methods.

python docs/pictures.py
"""

import html
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import whence
from whence import Comparison, activation_maximization, compare, explain, methods, models
from whence.explanation import Generation
from whence.inputs.sources import Kind
from whence.maximization import Channel, Head
from whence.render.colors import to_hex
from whence.render.shades import shade_word

DEMO = Path(whence.__file__).parent / "demo"
IMAGES = Path(__file__).parent / "images"
SENTENCE = "The story is thin, but the acting is superb and the ending deeply moving."
STORY = "Lily has a red ball. Tom has a blue kite. One day, Tom plays with his"
EXPLAINED = ("kite", "red")


def wrap_svg(shapes: list[str], width: float, height: float, size: int) -> str:
    """Wrap shapes into an SVG file with a white background."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="{size}">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(shapes)}</svg>\n'
    )


def draw_story(story: Generation, explained: tuple[str, ...], size: int = 17) -> str:
    """Draw a generated text once for each of some of its words: what did the word come from?"""
    table = story.matrix(by="word")
    font, y, end = ImageFont.load_default(size), 34.0, 0.0
    boxes: list[str] = []
    words: list[str] = []
    prompt = len(table.columns) - len(table.rows)
    for name in explained:
        row = table.rows.index(name)
        scores = table.values[row]
        x = 14.0
        for column, word in enumerate(table.columns):
            width = font.getlength(word)
            x += 3 if word in ".,!?" else font.getlength(" ") + 3
            box = (
                f'x="{x - 3:.1f}" y="{y - 1.1 * size:.1f}" width="{width + 6:.1f}" '
                f'height="{1.5 * size:.1f}" rx="3"'
            )
            ink = "#1a1a1a" if column - prompt < row else "#a0a0a0"
            if column - prompt == row:
                boxes.append(f'<rect {box} fill="#3d4663"/>')
                ink = "#fff"
            elif scores[column] > 0.05 * scores.max():
                color = to_hex(shade_word(scores[column] / scores.max(), "light"))
                boxes.append(f'<rect {box} fill="{color}"/>')
            weight = ' font-weight="600"' if column >= prompt else ""
            words.append(
                f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}"{weight} textLength="{width:.1f}" '
                f'lengthAdjust="spacingAndGlyphs">{html.escape(word)}</text>'
            )
            x += width
        end, y = max(end, x), y + 2.3 * size
    return wrap_svg([*boxes, *words], end + 14, y - 1.1 * size, size)


def draw_maximal_pictures() -> Image.Image:
    """Draw pictures that maximise two classes, a channel and a head of the embedded model."""
    model = models.load(None, "image", device="cpu")
    targets = {
        "logit of cat": "cat",
        "logit of dog": "dog",
        "channel 10 entering layer 4": Channel(layer=4, index=10),
        "head 1 of layer 3": Head(layer=3, head=1),
    }
    side, gap, caption = 160, 8, 22
    sheet = Image.new("RGB", (4 * (side + gap) + gap, side + caption + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for n, (name, target) in enumerate(targets.items()):
        left = gap + n * (side + gap)
        draw.text((left, 5), name, "#333", ImageFont.load_default(12))
        sheet.paste(activation_maximization(model, target).image, (left, caption))
    # Few colours make a small file.
    return sheet.quantize(160, dither=Image.Dither.FLOYDSTEINBERG)


METHODS = Path(__file__).parent / "methods"
MARKS = ("<!-- the table is made by docs/pictures.py -->", "<!-- end of the table -->")


def compare_all(what: Path | str, kind: Kind, target: str) -> Comparison:
    """Explain a photo or a text for a class by every method that can."""
    names = methods.available(kind)
    return compare(what, names, target=target)


def format_methods_table() -> str:
    """Format the registry's description of every method as a Markdown table."""
    lines = ["| method | by class | explains | forwards | what it is |", "| --- " * 5 + "|"]
    for name in methods.available():
        about = methods.describe(name)
        by_class = "yes" if about.class_specific else "no"
        lines.append(
            f"| [`{name}`]({name}.md) | {by_class} | {', '.join(about.inputs)} | {about.cost} "
            f"| {about.summary} |"
        )
    return "\n".join(lines)


def insert_table(page: str) -> str:
    """Insert the current table into the page on methods."""
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n{format_methods_table()}\n{MARKS[1]}{after}"


def main() -> None:
    """Write the pictures."""
    photo = DEMO / "cat.jpg"
    figure = explain(photo, classes=["cat", "dog"]).plot()
    figure.to_image(1.0).save(IMAGES / "cat.png", optimize=True)
    explain(SENTENCE).plot().save(IMAGES / "sentence.svg")
    model = models.load_language_model(None)
    story = model.explainer.explain_generation(model.tokenizer([STORY], return_tensors="pt"), 12)
    (IMAGES / "story.svg").write_text(draw_story(story, EXPLAINED), encoding="utf-8")
    draw_maximal_pictures().save(IMAGES / "activation-maximization.png", optimize=True)
    sheet = compare_all(photo, "image", "cat").plot().to_image(1.0)
    sheet.save(IMAGES / "methods.jpg", quality=86, optimize=True, subsampling=0)
    compare_all(SENTENCE, "text", "positive").plot().save(IMAGES / "methods-sentence.svg")
    page = METHODS / "README.md"
    page.write_text(insert_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(*sorted(IMAGES.iterdir()), page, sep="\n")


if __name__ == "__main__":
    main()
