"""`compare`: several methods on one input, as a grid of maps or words that shows itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from whence._util.files import FIGURES, check_ending, write_atomically
from whence._util.notes import merge_notes
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness import Faithfulness, measure
from whence.inputs.items import find_kind, read_batch
from whence.inputs.sources import NOUNS, Kind
from whence.methods import parse_methods
from whence.models import ModelObject, resolve
from whence.models.wrapping import reads_videos
from whence.render import Figure, draw_comparison
from whence.render.comparison import check_alike, format_comparison_page
from whence.render.display import show_figure
from whence.targets import find_class_index

if TYPE_CHECKING:
    from PIL.Image import Image

METHODS = ("whence", "gae", "attnlrp")
"""What is compared if no methods are named."""

_REMARK = "faithfulness: on this input and for the first class alone; 90 at most, 0 by chance"


class Comparison(Mapping[str, Explanation]):
    """Explanations of the same input by several methods, by the methods' names.

    Attributes:
        faithfulness: How faithful each is, if that was measured.
    """

    def __init__(
        self, explanations: Mapping[str, Explanation], faithfulness: Faithfulness | None = None
    ) -> None:
        check_alike(explanations)
        self._explanations = dict(explanations)
        self.faithfulness = faithfulness

    @override
    def __getitem__(self, method: str) -> Explanation:
        if method not in self._explanations:
            raise KeyError(f"'{method}' was not compared; there are {', '.join(self)}.")
        return self._explanations[method]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._explanations)

    @override
    def __len__(self) -> int:
        return len(self._explanations)

    def __repr__(self) -> str:
        """The methods in one line."""
        return f"Comparison({', '.join(self)})"

    def plot(
        self,
        sample: int = 0,
        *,
        whole: bool = False,
        outlines: bool = False,
        image: Image | None = None,
        theme: str = "light",
        title: str | None = None,
    ) -> Figure:
        """Draw the methods below each other and the classes side by side; words of texts in lines.

        Args:
            sample: Which sample of the batch.
            whole: As for `Explanation.plot`.
            outlines: As for `Explanation.plot`.
            image: As for `Explanation.plot`.
            theme: "light" or "dark".
            title: A line above.

        Raises:
            WhenceError: There is no such sample or theme, or it cannot be drawn.
        """
        return draw_comparison(
            self,
            sample,
            notes=self._notes,
            remark=_REMARK if self.faithfulness is not None else "",
            whole=whole,
            outlines=outlines,
            image=image,
            theme=theme,
            title=title,
        )

    def show(self, *, path: str | Path | None = None) -> None:
        """Display in a notebook; in a script, open the figure or print the explanations.

        Args:
            path: A file to write instead, as `save` does.
        """
        if path is not None:
            self.save(path)
        elif not show_figure(self):
            for name, explanation in self.items():
                print(name)
                explanation.show()

    def to_html(self, title: str | None = None) -> str:
        """A page that needs nothing outside itself: the figure of each sample.

        Args:
            title: Its heading; the text, or a few words on photos, if left out.
        """
        samples = range(len(next(iter(self.values()))))
        return format_comparison_page(self, map(self.plot, samples), title)

    def save(self, path: str | Path) -> None:
        """Write a figure of the first sample (.png, .jpg, .svg) or a page (.html), whole or not.

        Raises:
            WhenceError: The name ends otherwise, or the place cannot be written.
        """
        if check_ending(path, (*FIGURES, ".html")) == ".html":
            write_atomically(Path(path), self.to_html().encode())
        else:
            self.plot().save(path)

    def _repr_svg_(self) -> str:
        return self.plot().to_svg()

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    @property
    def _notes(self) -> dict[str, str]:
        """The faithfulness of each method for the first class, to stand beside its name."""
        if self.faithfulness is None:
            return {}
        scores = {name: self.faithfulness.get(name).score for name in self}
        return {name: f"faithfulness {score:.1f}" for name, score in scores.items()}


def compare(
    what: object,
    methods: str | Sequence[str] = METHODS,
    model: str | Path | ModelObject | None = None,
    *,
    processor: object = None,
    kind: Kind | None = None,
    faithfulness: bool = False,
    draws: int = 0,
    **request: Any,
) -> Comparison:
    """Explain a photo, a text, a video or a sound by several methods, to see them side by side.

    Args:
        what: A photo, a text, a video or a sound, as `whence.explain` takes them, or a list of
            these. Or explanations of one input that are there already, by their names or as a list.
        methods: Any of ``methods.available()``, also with options: ``"rollout:start_layer=1"``.
        model: As `whence.explain` takes it.
        processor: As `whence.explain` takes it.
        kind: ``"text"`` says that a string is text, also one that looks like a path or a word.
        faithfulness: Whether to measure how faithful each method is on this input, by deleting
            what it calls relevant. That takes some 20 forward passes for each method and class.
        draws: With faithfulness, how many random orders to draw for comparison.
        **request: Other arguments of `Explainer.explain`: ``target``, ``classes``, ``against``, ….

    Raises:
        WhenceError: Something is wrong with the input, the model, the methods or the request; or
            the explanations are of different inputs or classes.

    Example:
        >>> compare("cat.jpg", ["whence", "gae"]).save("methods.png")  # doctest: +SKIP
    """
    given = _collect_explanations(what)
    if given is not None:
        if model is not None or request or faithfulness:
            raise WhenceError("Explanations that are there already are compared as they are.")
        return Comparison(given)
    chosen = parse_methods(methods)
    if isinstance(what, list | tuple) and not what:
        raise WhenceError("There is nothing to compare: the list is empty.")
    inputs = read_batch(what, strings=kind or ("video" if reads_videos(model) else None))
    if not isinstance(inputs, list):
        raise WhenceError(
            "Photos, texts, videos and sounds are compared, not tensors; explain these by each "
            "method, and compare the explanations."
        )
    loaded = resolve(model, find_kind(inputs[0]), processor)
    prepared = loaded.prepare(inputs)
    if faithfulness:
        loaded.check_is_photo_or_text("faithfulness=True")
    noun = "photo" if loaded.kind == "image" else NOUNS[loaded.kind].removesuffix("s")
    for note in merge_notes(prepared.notes, noun) if len(inputs) > 1 else prepared.notes[0]:
        warnings.warn(f"Note: {note}.", stacklevel=2)
    explanations = {
        one.label: loaded.explain(prepared, **one.explain_arguments(), **request) for one in chosen
    }
    if not faithfulness:
        return Comparison(explanations)
    against = request.get("against")
    if against is not None:
        against = find_class_index(against, loaded.class_names, loaded.class_count)
    return Comparison(
        explanations, measure(loaded, prepared, explanations, against=against, draws=draws)
    )


def _collect_explanations(what: object) -> dict[str, Explanation] | None:
    """The explanations that were given, by name; None if something is to be explained."""
    if isinstance(what, Mapping) and all(isinstance(one, Explanation) for one in what.values()):
        return {str(name): one for name, one in what.items()}
    if not isinstance(what, list | tuple) or not any(isinstance(x, Explanation) for x in what):
        return None
    if not all(isinstance(one, Explanation) for one in what):
        raise WhenceError("Give explanations only, or one input to explain.")
    names: dict[str, Explanation] = {}
    for number, one in enumerate(what):
        name = one.method or f"explanation {number + 1}"
        names[name if name not in names else f"{name} {number + 1}"] = one
    return names
