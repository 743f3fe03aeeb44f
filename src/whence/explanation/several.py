"""The answer about several inputs of a model at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from whence._util.files import FIGURES, check_ending
from whence._util.saved import SUFFIX, explain_damage, read_parts, write_parts
from whence.explanation.explanation import Explanation
from whence.explanation.generation import Generation
from whence.explanation.matrix import make_dataframe
from whence.layout.grouping import Grouping

if TYPE_CHECKING:
    from pandas import DataFrame
    from PIL.Image import Image

    from whence.render.display import Figure

_FORMAT = "whence explanations 1"


class Explanations(dict[str, Explanation]):
    """The explanations of several inputs of a model, by their names, from one forward pass."""

    def plot(
        self,
        sample: int = 0,
        *,
        image: Image | Sequence[Image] | None = None,
        theme: str = "light",
        title: str | None = None,
    ) -> Figure:
        """Draw one sample: its images with their maps, and its words below.

        Args:
            sample: Which sample of the batch.
            image: The image as the model saw it, or a list where the sample has several.
            theme: "light" or "dark".
            title: A line above.

        Raises:
            WhenceError: There is no such sample or theme, or other images than those explained.
        """
        from whence.render import display

        return display.draw_several(self, sample, images=image, theme=theme, title=title)

    def to_pandas(self, sample: int = 0, by: Grouping = "token") -> DataFrame:
        """The scores of one sample as a table of pandas, one line for each input, class and unit.

        Args:
            sample: Which sample of the batch.
            by: Of texts, as for `Explanation.matrix`.

        Raises:
            WhenceError: There is no such sample or grouping; or pandas is not installed.
        """
        return make_dataframe(
            [
                {"input": name, **record}
                for name, one in self.items()
                for record in one._list_records(sample, by)
            ]
        )

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all, in the form that its name's ending says.

        Args:
            path: Where to write. .safetensors is all that `load` reads again; .png, .jpg and
                .svg are a figure of the first sample.

        Raises:
            WhenceError: The name ends otherwise, or the place cannot be written.
        """
        check_ending(path, (SUFFIX, *FIGURES))
        if Path(path).suffix.lower() in FIGURES:
            self.plot().save(path)
            return
        parts = {name: one._to_parts() for name, one in self.items()}
        facts = {name: saved for name, (saved, _) in parts.items()}
        tensors = {f"{n}/{key}": x for n, (_, held) in parts.items() for key, x in held.items()}
        write_parts(path, _FORMAT, facts, tensors)

    @classmethod
    def load(cls, path: str | Path) -> Explanations:
        """Read what `save` wrote.

        Raises:
            WhenceError: There is no such file, or it is damaged or does not hold explanations.
        """
        facts, tensors = read_parts(path, _FORMAT)
        with explain_damage(path):
            held: dict[str, dict[str, Tensor]] = {name: {} for name in facts}
            for place, tensor in tensors.items():
                name, _, key = place.rpartition("/")
                held[name][key] = tensor
            return cls(
                (n, _find_kind(held[n])._from_parts(one, held[n])) for n, one in facts.items()
            )


def _find_kind(tensors: Mapping[str, Tensor]) -> type[Explanation]:
    return Generation if "positions" in tensors else Explanation
