"""Map the labels of a dataset to the classes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.targets import find_class_index

if TYPE_CHECKING:
    from whence.datasets import Sample


@dataclass(frozen=True)
class LabelMapping:
    """Finds the model's class for a label of the dataset; `given` names those that differ."""

    given: Mapping[str, str | int] = field(default_factory=dict)

    def check(self, loaded: LoadedModel) -> None:
        """Refuse classes that the model does not have, rather than skip all their samples."""
        for label, class_name in self.given.items():
            if isinstance(self._look_up(loaded, class_name), WhenceError):
                raise WhenceError(
                    f"--classes says that '{label}' is '{class_name}', which is no class of "
                    f"'{loaded.title}'."
                )

    def find_index(self, loaded: LoadedModel, sample: Sample) -> int | None:
        """Find the index of a sample's class; None if it has no label.

        A name that is not a class, but the beginning of a single one, means that: ``NEG`` is
        ``negative``.
        """
        if sample.label is None:
            return None
        found = self._look_up(loaded, self.given.get(str(sample.label), sample.label))
        if isinstance(found, WhenceError):
            raise WhenceError(
                f"The label of '{sample.name}' is not a class of '{loaded.title}': {found} Say "
                f"what labels mean with --classes LABEL=CLASS,…"
            )
        return found

    def _look_up(self, loaded: LoadedModel, label: int | str) -> int | WhenceError:
        """Find the index of a class, or the reason why there is none."""
        try:
            return find_class_index(label, loaded.class_names, loaded.class_count)
        except WhenceError as error:
            beginnings = [
                index
                for index, name in loaded.class_names.items()
                if isinstance(label, str) and name.lower().startswith(label.strip().lower())
            ]
            return beginnings[0] if len(beginnings) == 1 else error


def parse_classes(given: object) -> dict[str, str | int]:
    """Parse what labels mean, from ``NEG=negative,POS=1``."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    found: dict[str, str | int] = {}
    for pair in str(given).split(","):
        label, equals, name = (part.strip() for part in pair.partition("="))
        if not (label and equals and name):
            raise WhenceError(f"Classes are given as LABEL=CLASS,…, not '{given}'.")
        found[label] = int(name) if name.isdecimal() else name
    return found
