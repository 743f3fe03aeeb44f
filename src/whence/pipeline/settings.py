"""What to explain inputs with: the model, the methods and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import WhenceError
from whence.inputs.sources import Kind, Source
from whence.methods import registry
from whence.methods.registry import MethodSpecification
from whence.models import LoadedModel, compare_with, load
from whence.models.pairs import check_texts
from whence.rules import get as get_rules
from whence.targets import box, pixel, token


@dataclass(frozen=True)
class ExplainSettings:
    """The model, as `whence.models.load` takes it, the methods and the classes of explanations."""

    methods: tuple[MethodSpecification, ...]  # each input is explained by all of them
    model: str | None = None
    weights: Path | None = None
    device: str | None = None
    targets: tuple[str, ...] = ()  # names or indices; the predicted class if there are none
    top: int | None = None  # instead of targets, the number of most probable classes
    batch: int = 16  # how many inputs are in memory at once
    memory: float | None = None  # gibibytes, as `Explainer.explain` takes them
    compile: bool = False
    precision: str | None = None
    verify: bool = False  # whether to measure all checks, also dear ones
    of: str | None = None  # the model's input that gets scores; its main one if left out
    against: str | None = None  # a class or token: why the target and not this one
    position: int | None = None  # of the explained token, in models with an output for each token
    box: int | None = None  # of a detection model
    pixel: str | None = None  # "row,column" of a dense head, or shares of height and width
    texts: tuple[str, ...] | None = None  # that inputs are compared with, by models that do so

    def check(self) -> None:
        """Refuse wrong settings before a model is loaded."""
        for one in self.methods:
            registry.build(one.name, one.options)
            get_rules(one.rules)
        self.target_arguments()
        if self.texts is not None:
            check_texts(self.texts)
            if self.model is None:
                raise WhenceError(
                    "--text compares inputs with texts, and the embedded models do not: name a "
                    "model that does with --model, such as a CLIP or an encoder of sentences."
                )

    def target_arguments(self) -> dict[str, Any]:
        """Return the targets as arguments of `Explainer.explain`."""
        if self.targets and self.top is not None:
            raise WhenceError("Give either --target or --top, not both.")
        places = {"--position": self.position, "--box": self.box, "--pixel": self.pixel}
        given = [name for name, value in places.items() if value is not None]
        given += ["--top"] if given and self.top is not None else []
        if len(given) > 1:
            raise WhenceError(f"Give either {given[0]} or {given[1]}, not both.")
        arguments: dict[str, Any] = {}
        if self.against is not None:
            arguments["against"] = self._read_target(self.against)
        if self.top is not None:
            return {"classes": self.top, **arguments}
        named = [self._read_target(one) for one in self.targets]
        if len(named) > 1:
            return {"classes": named, **arguments}
        if named or given:
            arguments["target"] = named[0] if named else self._read_target(None)
        return arguments

    def _read_target(self, name: str | None) -> Any:
        """A class or token by its name, or by its number where no name is that number."""
        if self.box is not None:
            return box(self.box, name)
        if self.pixel is not None:
            return pixel(*_read_place(self.pixel), name)
        return name if self.position is None else token(self.position, name)

    def load_models(self, sources: Sequence[Source]) -> dict[Kind, LoadedModel]:
        """Load the model for each kind of input, and check its classes."""
        if self.model is not None or self.weights is not None:
            loaded = self.load(None)
            models = {loaded.kind: loaded}
        else:
            readable = [source for source in sources if source.problem is None]
            kinds = sorted({source.kind for source in readable or sources})
            models = {kind: self.load(kind) for kind in kinds}
        for loaded in models.values():
            loaded.check_classes(**self.target_arguments())
        return models

    def load(self, kind: Kind | None, scores_words: bool = True) -> LoadedModel:
        """Load the model, which is that for a kind of input if none is named.

        Args:
            kind: The kind of input.
            scores_words: Whether words of texts that inputs are compared with get scores.
        """
        how: Any = {"compile": self.compile, "precision": self.precision}
        loaded = load(self.model, kind, self.weights, self.device, **how)
        return compare_with(loaded, self.texts, scores_words)


def _read_place(text: str) -> tuple[int | float, int | float]:
    """Read "row,column" as whole numbers, or as shares where there is a point."""
    try:
        row, column = (float(one) if "." in one else int(one) for one in text.split(","))
    except ValueError:
        raise WhenceError(
            f"--pixel takes a row and a column, such as 12,30 or 0.5,0.25, not '{text}'."
        ) from None
    return row, column
