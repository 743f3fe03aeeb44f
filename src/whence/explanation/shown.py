"""How an explanation shows itself: as a figure, in a notebook, on a terminal, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from whence.layout.grouping import Grouping

if TYPE_CHECKING:
    from PIL.Image import Image

    from whence.explanation.explanation import Explanation
    from whence.render.display import Figure


class Shown:
    """What draws and prints an explanation."""

    @property
    def _explanation(self) -> Explanation:
        return cast("Explanation", self)

    def plot(
        self,
        sample: int = 0,
        *,
        whole: bool = False,
        outlines: bool = False,
        image: Image | None = None,
        by: Grouping = "word",
        theme: str = "light",
        title: str | None = None,
    ) -> Figure:
        """Draw one sample: the photo, frames or sound with a map of each class, or coloured words.

        The figure shows itself in notebooks; `.save("a.png")`, `"a.jpg"` or `"a.svg"` writes it.

        Args:
            sample: Which sample of the batch.
            whole: Whether maps lie on the whole photo; what the model did not see is grey.
            outlines: Whether to draw the outlines of each map's peak regions; see `regions`.
            image: The photo as the model saw it, where the explanation does not know it.
            by: Of generated text, the parts of the table, as for `Generation.matrix`.
            theme: "light" or "dark".
            title: A line above.

        Raises:
            WhenceError: There is no such sample or theme, or it cannot be drawn.
        """
        from whence.render import display

        look: dict[str, Any] = {"whole": whole, "outlines": outlines, "theme": theme}
        return display.draw_figure(
            self._explanation, sample, image=image, by=by, title=title, **look
        )

    def show(self, image: Image | None = None, *, path: str | Path | None = None) -> None:
        """Display in a notebook; in a script, open the figure of a photo or print to the terminal.

        A photo and its maps open in the system's viewer where there is a display. Without one, and
        for texts, all is printed: coloured words, and maps in blocks of colour.

        Args:
            image: The photo of the first sample, where the explanation does not know it.
            path: A file to write instead, as `save` does.

        Raises:
            WhenceError: An image was given for a text, or the file cannot be written.
        """
        from whence.render import display

        display.show(self._explanation, image, path=path)

    def _repr_html_(self) -> str:
        from whence.render import display

        return display.format_notebook_html(self._explanation)

    def to_html(self, by: Grouping = "word", title: str | None = None) -> str:
        """A page that needs nothing outside itself: photos beside maps, or coloured words.

        Args:
            by: Of generated text, as for `Generation.matrix`.
            title: Its heading; the text, or the first class of a photo, if left out.
        """
        from whence.render import display

        return display.format_page(self._explanation, by=by, title=title)
