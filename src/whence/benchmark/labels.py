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


_FEW_CLASSES = 10


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
        ``negative``; of more than ten classes, whole words: ``cat`` is no ``catamaran``. Where the
        label is no class of the model, its other names are tried: a breed for a species.
        """
        labels = [one for one in (sample.label, *sample.other_labels) if one is not None]
        tried = [self._look_up(loaded, self.given.get(str(one), one)) for one in labels]
        index = next((one for one in tried if isinstance(one, int)), None)
        if index is None and sample.label is not None:
            raise WhenceError(
                f"The label of '{sample.name}' is not a class of '{loaded.title}': {tried[0]} Say "
                f"what labels mean with --classes LABEL=CLASS,…"
            )
        return index

    def _look_up(self, loaded: LoadedModel, label: int | str) -> int | WhenceError:
        """Find the index of a class, or the reason why there is none."""
        try:
            return find_class_index(label, loaded.class_names, loaded.class_count)
        except WhenceError as error:
            if not isinstance(label, str):
                return error
            beginning = label.strip().lower()
            names = {index: name.lower() for index, name in loaded.class_names.items()}
            found = [index for index, name in names.items() if name.startswith(beginning)]
            if loaded.class_count > _FEW_CLASSES:
                found = [at for at in found if not names[at][len(beginning) :][:1].isalnum()]
            return found[0] if len(found) == 1 else error


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
