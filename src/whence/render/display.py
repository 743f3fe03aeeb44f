"""Showing an explanation where the user is: in a notebook or on a terminal."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whence.errors import WhenceError
from whence.render.colors import Colormap, Floats, get_colormap
from whence.render.drawing import encode_png
from whence.render.facts import ExplainedClass, explained_classes, unspecific
from whence.render.figure import figure
from whence.render.overlay import as_rgb, blended, contrasted, is_signed, upsampled
from whence.render.templates import render_template
from whence.render.text import list_class_words, terminal_heading, terminal_text
from whence.render.words import any_signed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from whence.explanation import Explanation

# A notebook shows this many samples; more would drown what is around it.
_MOST_SAMPLES = 16
# The longer side of a heatmap, in pixels in a notebook and in half blocks on a terminal.
_PIXELS, _BLOCKS = 224, 36
# Without colours, strength is told by shade, and evidence against by other signs.
_FOR, _AGAINST = " ░▒▓█", " .:-="


def show(
    explanation: Explanation, image: Image.Image | None = None, console: Console | None = None
) -> None:
    """Display in a running notebook, else print to a terminal.

    Args:
        explanation: What to show.
        image: The photo of the first sample, to lay its heatmaps over.
        console: Where to print; the standard output if left out.

    Raises:
        WhenceError: An image was given for an explanation of texts.
    """
    if image is not None and explanation.grid is None:
        raise WhenceError("This explanation is of tokens; it cannot be laid over an image.")
    display = _notebook_display() if console is None else None
    if display is not None:
        display(figure(image, explanation) if image is not None else explanation)
        return
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    # A photo belongs to one sample.
    samples = 1 if image is not None else len(explanation.scores)
    for sample in range(samples):
        for target in range(len(explained_classes(explanation, sample))):
            console.print(terminal_heading(explanation, sample, target))
            if explanation.grid is None:
                console.print(terminal_text(explanation, sample, target))
            else:
                colored = console.color_system is not None
                console.print(_blocks(explanation, sample, target, image, colored))
            console.print()
    if unspecific(explanation):
        console.print(Text(f"{unspecific(explanation)}."))


def show_picture(image: Image.Image, heading: str, console: Console | None = None) -> None:
    """Display any picture in a running notebook, else print it to a terminal below a heading.

    Args:
        image: The picture.
        heading: A line above it, on a terminal.
        console: Where to print; the standard output if left out.
    """
    display = _notebook_display() if console is None else None
    if display is not None:
        display(image)
        return
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    scale = _BLOCKS / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    small = as_rgb(image).resize((width, height + height % 2), Image.Resampling.LANCZOS)
    console.print(Text(heading))
    if console.color_system is not None:
        console.print(_half_blocks(np.asarray(small)))
    else:
        grey = np.asarray(small.convert("L"), dtype=np.float32) / 255
        console.print(_shades(grey))


def html(explanation: Explanation) -> str:
    """The explanation for a notebook: coloured words, or heatmaps."""
    total = len(explanation.scores)
    samples = range(min(total, _MOST_SAMPLES))
    content: dict[str, object]
    if explanation.grid is None:
        content = {
            "samples": [list_class_words(explanation, sample) for sample in samples],
            "signed": any_signed(explanation),
        }
    else:
        content = {
            "samples": [_draw_maps(explanation, sample) for sample in samples],
            "size": _size(explanation, _PIXELS),
        }
    note = unspecific(explanation)
    return str(
        render_template("render/templates/notebook.html.j2", total=total, note=note, **content)
    )


def _notebook_display() -> Any:
    """The function that shows an object in the running notebook; None outside of one."""
    # A notebook has imported IPython; a terminal must not pay for it.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    return import_module("IPython.display").display


def _draw_maps(explanation: Explanation, sample: int) -> list[tuple[ExplainedClass, bytes]]:
    """The explained classes of a photo, each with its heatmap as a PNG."""
    maps = []
    for one in explained_classes(explanation, sample):
        scores, colors = _map(explanation, one.scores)
        picture = Image.fromarray(colors(upsampled(scores, _size(explanation, _PIXELS))))
        maps.append((one, encode_png(picture)))
    return maps


def _blocks(
    explanation: Explanation, sample: int, target: int, image: Image.Image | None, colored: bool
) -> Text:
    """A heatmap in half blocks, two pixels to a character; in shades where there is no colour."""
    scores, colors = _map(explanation, explained_classes(explanation, sample)[target].scores)
    width, height = _size(explanation, _BLOCKS)
    height += height % 2
    values = upsampled(scores, (width, height))
    if not colored:
        return _shades(values)
    if image is None:
        pixels = colors(values)
    else:
        photo = as_rgb(image).resize((width, height), Image.Resampling.LANCZOS)
        pixels = np.asarray(blended(photo, scores, colors, 0.6))
    return _half_blocks(pixels)


def _half_blocks(pixels: NDArray[np.uint8]) -> Text:
    """Pixels, (an even height, width, 3), as coloured half blocks."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for one, other in zip(upper, lower, strict=True):
            style = Style(color=Color.from_rgb(*map(int, one)), bgcolor=Color.from_rgb(*other))
            text.append("▀", style)
        text.append("\n")
    text.rstrip()
    return text


def _shades(values: Floats) -> Text:
    """Values from -1 to 1, (an even height, width), as signs."""
    from rich.text import Text

    return Text("\n".join("".join(map(_sign, row)) for row in (values[::2] + values[1::2]) / 2))


def _sign(value: float) -> str:
    signs = _FOR if value >= 0 else _AGAINST
    return signs[round(abs(value) * (len(signs) - 1))]


def _map(explanation: Explanation, scores: Floats) -> tuple[Floats, Colormap]:
    """Relative scores on the grid, and the colours that suit their sign."""
    assert explanation.grid is not None
    return contrasted(scores).reshape(explanation.grid), get_colormap("auto", is_signed(scores))


def _size(explanation: Explanation, longest: int) -> tuple[int, int]:
    """Width and height of a heatmap in the shape of the image that the model saw."""
    height, width = explanation.image_size or explanation.grid or (1, 1)
    scale = longest / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))
