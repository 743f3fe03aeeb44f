"""Show an explanation where the user is: in a notebook or on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from PIL import Image

from whence.errors import WhenceError
from whence.explanation import Generation
from whence.layout.grouping import Grouping
from whence.render.drawing import encode_png
from whence.render.figure import draw_figure
from whence.render.generation import format_generation_html, format_generation_page
from whence.render.overlay import fit_size, prepare_map, upsample
from whence.render.templates import render_template
from whence.render.words import has_negative_scores, list_class_words

if TYPE_CHECKING:
    from rich.console import Console

    from whence.explanation import ExplainedClass, Explanation

__all__ = [
    "format_generation_page",
    "format_notebook_html",
    "show",
    "show_generation",
    "show_image",
]

# A notebook shows this many samples; more would drown what is around it.
_MOST_SAMPLES = 16
# The longer side of a heatmap in a notebook, in pixels.
_PIXELS = 224


def show(
    explanation: Explanation, image: Image.Image | None = None, console: Console | None = None
) -> None:
    """Display an explanation in a running notebook, else print it to a terminal.

    Args:
        explanation: What to show.
        image: The photo of the first sample, to lay its heatmaps over.
        console: Where to print; the standard output if left out.

    Raises:
        WhenceError: An image was given for an explanation of texts.
    """
    if image is not None and explanation.picture_grid is None:
        raise WhenceError("This explanation is of tokens; it cannot be laid over an image.")
    display = _find_notebook_display() if console is None else None
    if display is not None:
        display(draw_figure(image, explanation) if image is not None else explanation)
        return
    from rich.console import Console
    from rich.text import Text

    from whence.render import terminal

    console = console or Console()
    has_colors = console.color_system is not None
    # A photo belongs to one sample.
    samples = 1 if image is not None else len(explanation.scores)
    for sample in range(samples):
        for target, one in enumerate(explanation.classes(sample)):
            console.print(terminal.format_heading(one))
            if explanation.picture_grid is None:
                console.print(terminal.format_terminal_text(explanation, sample, target))
            else:
                scores = one.scores.reshape(explanation.picture_grid)
                shape = explanation.image_size or explanation.picture_grid
                console.print(terminal.draw_heatmap(scores, shape, image, has_colors))
            console.print()
    for note in explanation.notes:
        console.print(Text(f"{note}."))


def show_generation(
    generation: Generation,
    by: Grouping = "word",
    word: int | None = None,
    console: Console | None = None,
    *,
    notes: bool = True,
) -> None:
    """Display a generation in a running notebook, else print it to a terminal.

    Args:
        generation: What to show.
        by: As for `Generation.matrix`.
        word: Which of the generated words; all with their highest sources if left out.
        console: Where to print; the standard output if left out.
        notes: Whether to print what a reader should know, too.

    Raises:
        WhenceError: There is no such word or grouping.
    """
    display = _find_notebook_display() if console is None else None
    if display is not None:
        content = format_generation_html(generation, by, _MOST_SAMPLES)
        display(import_module("IPython.display").HTML(content))
        return
    from rich.console import Console
    from rich.text import Text

    from whence.render.terminal_generation import format_sources, format_word

    console = console or Console()
    for sample in range(len(generation)):
        if word is None:
            console.print(format_sources(generation, sample, by))
        else:
            console.print(format_word(generation, sample, by, word))
        console.print()
    for note in generation.notes if notes else ():
        console.print(Text(f"{note}."))


def show_image(image: Image.Image, heading: str, console: Console | None = None) -> None:
    """Display any picture in a running notebook, else print it to a terminal below a heading."""
    display = _find_notebook_display() if console is None else None
    if display is not None:
        display(image)
        return
    from rich.console import Console
    from rich.text import Text

    from whence.render import terminal

    console = console or Console()
    console.print(Text(heading))
    console.print(terminal.draw_image(image, console.color_system is not None))


def format_notebook_html(explanation: Explanation) -> str:
    """The explanation for a notebook: coloured words, or heatmaps."""
    if isinstance(explanation, Generation):
        return format_generation_html(explanation, "word", _MOST_SAMPLES)
    total = len(explanation.scores)
    samples = range(min(total, _MOST_SAMPLES))
    content: dict[str, object]
    if explanation.picture_grid is None:
        content = {
            "samples": [list_class_words(explanation, sample) for sample in samples],
            "signed": has_negative_scores(explanation),
        }
    else:
        size = fit_size(explanation.image_size or explanation.picture_grid, _PIXELS)
        maps = [_draw_maps(explanation.classes(n), explanation.picture_grid, size) for n in samples]
        content = {"samples": maps, "size": size}
    template = "render/templates/notebook.html.j2"
    return str(render_template(template, total=total, note=". ".join(explanation.notes), **content))


def _find_notebook_display() -> Callable[[object], None] | None:
    """The function that shows an object in the running notebook; None outside of one."""
    # A notebook has imported IPython; a terminal must not pay for it.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[[object], None] = import_module("IPython.display").display
    return display


def _draw_maps(
    classes: list[ExplainedClass], grid: tuple[int, int], size: tuple[int, int]
) -> list[tuple[ExplainedClass, bytes]]:
    """The classes, each with its heatmap as a PNG."""
    maps = []
    for one in classes:
        shares, colors = prepare_map(one.scores.reshape(grid))
        maps.append((one, encode_png(Image.fromarray(colors(upsample(shares, size))))))
    return maps
