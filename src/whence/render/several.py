"""A figure of several inputs of one model: the maps of images above, the words below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from PIL import Image

from whence.errors import WhenceError
from whence.render.drawing import Figure
from whence.render.figure import draw_figure
from whence.render.panels import move

if TYPE_CHECKING:
    from whence.explanation import Explanation


def draw_several(
    explanations: Mapping[str, Explanation],
    sample: int = 0,
    *,
    images: Image.Image | Sequence[Image.Image] | None = None,
    theme: str = "light",
    title: str | None = None,
) -> Figure:
    """Draw the images of one sample with their maps, and its words below.

    Args:
        explanations: By the names of the inputs.
        sample: Which sample of the batch.
        images: The sample's image as the model saw it, or its images; what the explanation knows of
            them if left out.
        theme: "light" or "dark".
        title: A line above.

    Raises:
        WhenceError: There is no such sample, theme or image.
    """
    given = [images] if isinstance(images, Image.Image) else list(images or ())
    parts: list[tuple[str, Explanation, int]] = []
    for name, one in explanations.items():
        if _has_images(one):
            parts += [(label, part, 0) for label, part in one.images(sample).items()]
        else:
            parts.append((name, one, sample))
    parts.sort(key=lambda part: part[1].grid is None)
    count = sum(_has_images(part) for _, part, _ in parts)
    if given and len(given) != count:
        raise WhenceError(f"{len(given)} image(s) were given for {count} that are explained.")
    figures: list[Figure] = []
    for number, (label, part, at) in enumerate(parts):
        image = given[number] if number < len(given) else None
        heading = label if count > 1 and part.grid is not None else None
        heading = heading if figures or title is None else title
        figures.append(draw_figure(part, at, image=image, theme=theme, title=heading))
    return stack_figures(figures)


def stack_figures(figures: Sequence[Figure]) -> Figure:
    """Figures below each other, as one."""
    whole = Figure(max(one.width for one in figures), 0, figures[0].background)
    for one in figures:
        whole.shapes += move(one.shapes, 0, whole.height)
        whole.height += one.height
    return whole


def _has_images(explanation: Explanation) -> bool:
    axes = explanation.axes[-2:]
    return explanation.image_size is not None and axes in ((), ("row", "column"))
