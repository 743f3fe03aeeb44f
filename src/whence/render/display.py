"""Show an explanation where the user is: in a notebook, in a window or on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from PIL import Image, ImageShow

from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.explanation.heatmaps import arrange_picture
from whence.explanation.summary import name_kind
from whence.layout.grouping import Grouping
from whence.render.colors import Floats
from whence.render.compared import format_fits
from whence.render.drawing import Figure
from whence.render.figure import draw_figure
from whence.render.files import save
from whence.render.maps import find_photo
from whence.render.media import find_shape
from whence.render.pages import format_notebook_html, format_page
from whence.render.sentences import describe_evidence, name_model
from whence.render.several import draw_several
from whence.render.strengths import list_strengths

if TYPE_CHECKING:
    from rich.console import Console

    from whence.explanation import Explanation, Generation

__all__ = [
    "Figure",
    "draw_figure",
    "draw_several",
    "format_notebook_html",
    "format_page",
    "show",
    "show_figure",
    "show_generation",
    "show_image",
]


class Drawable(Protocol):
    """What draws a figure of itself."""

    def plot(self) -> Figure:
        """The figure."""


def show(
    explanation: Explanation,
    image: Image.Image | None = None,
    console: Console | None = None,
    *,
    path: str | Path | None = None,
) -> None:
    """Display an explanation in a running notebook, else open its figure or print it.

    Args:
        explanation: What to show.
        image: The photo of the first sample, where the explanation does not know it.
        console: Where to print; the standard output if left out.
        path: A file to write instead.

    Raises:
        WhenceError: An image was given for an explanation of texts, or the file cannot be written.
    """
    if image is not None and len(explanation.grid or ()) != 2:
        raise WhenceError("This explanation is of no photo; it cannot be laid over an image.")
    if path is not None and image is not None:
        draw_figure(explanation, image=image).save(path)
    elif path is not None:
        save(explanation, path)
    elif console is None and (display := _find_notebook_display()) is not None:
        display(draw_figure(explanation, image=image) if image is not None else explanation)
    elif console is not None or not _open_figure(explanation, image):
        _print(explanation, image, console)


def _print(explanation: Explanation, image: Image.Image | None, console: Console | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from whence.render import terminal

    console = console or Console()
    has_colors = console.color_system is not None
    # A photo belongs to one sample.
    samples = 1 if image is not None else len(explanation.scores)
    for sample in range(samples):
        photo = find_photo(explanation, sample, image)
        seen = None if photo is None else photo.crop
        strengths = list_strengths(explanation, sample)
        for target, one in enumerate(explanation.classes(sample)):
            console.print(terminal.format_heading(one))
            if explanation.grid is None:
                console.print(terminal.format_terminal_text(explanation, sample, target))
            else:
                shares = arrange_picture(one.scores, explanation.grid, explanation.axes)
                scores = shares.reshape(-1, shares.shape[-1])
                shape = _find_shape(explanation, scores)
                shape = shape if seen is None else (seen.height, seen.width)
                drawn = terminal.draw_heatmap(scores, shape, seen, has_colors, strengths[target])
                console.print(drawn)
            if compared := terminal.format_compared(explanation, sample, target):
                console.print(compared)
            if evidence := describe_evidence(explanation, sample, target):
                console.print(Text(to_printable(f"{evidence}.")))
            console.print()
        if fits := format_fits(explanation, sample):
            console.print(Text(to_printable(fits)))
    for note in explanation.notes:
        console.print(Text(f"{note}."))
    if model := name_model(explanation):
        console.print(Text(to_printable(model)))


def _find_shape(explanation: Explanation, scores: Floats) -> tuple[int, int]:
    """Height and width of a map alone on a terminal: frames of a video are below each other."""
    if len(explanation.grid or ()) == 2 and "time" not in explanation.axes:
        return explanation.image_size or (scores.shape[0], scores.shape[1])
    if len(explanation.grid or ()) == 3:
        return scores.shape[0], scores.shape[1]
    return find_shape(explanation, None)


def show_figure(drawn: Drawable) -> bool:
    """Display what has a figure in a running notebook, or open it; False if neither can be."""
    display = _find_notebook_display()
    if display is not None:
        display(drawn)
        return True
    return has_screen() and ImageShow.show(drawn.plot().to_image(2.0))


def _open_figure(explanation: Explanation, image: Image.Image | None) -> bool:
    """Open the figure of a photo in the system's viewer; False if there is none, or no photo."""
    is_known = bool(image is not None or explanation.photos or explanation.media)
    if explanation.grid is None or not is_known or not has_screen():
        return False
    is_open = ImageShow.show(draw_figure(explanation, image=image).to_image(2.0))
    if is_open and len(explanation) > 1 and image is None:
        kind = name_kind(explanation)
        print(f"The first of {len(explanation)} {kind}s is shown; .plot(1) draws the second.")
    return is_open


def has_screen() -> bool:
    """Whether windows can be opened here."""
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


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
        content = format_notebook_html(generation, by)
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


def _find_notebook_display() -> Callable[[object], None] | None:
    """The function that shows an object in the running notebook; None outside of one."""
    # A notebook has imported IPython; a terminal must not pay for it.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[[object], None] = import_module("IPython.display").display
    return display
