"""The models that methods were tried on: which ran, and why others were refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from whence._util.near_names import suggest_names
from whence.errors import WhenceError

RESULTS = Path(__file__).parent / "tried.json"


@dataclass(frozen=True)
class TriedModel:
    """A model in a small random configuration and a task, and the methods that run on it.

    Attributes:
        library: The library that it is of, such as ``"transformers"``.
        model: The name of its class, or its name in the library.
        family: The family that it belongs to.
        task: What it does.
        variant: What is particular about its configuration.
        of: The input that gets scores; empty for the model's main input.
        methods: The methods that run.
        refused: The other ones that were tried, by the reason why they do not run.
        checked: What its scores were compared with: ``"authors' results"``, ``"formulas"``, or
            nothing, where it was only seen that methods run.
    """

    library: str
    model: str
    family: str
    task: str
    variant: str = ""
    of: str = ""
    methods: tuple[str, ...] = ()
    refused: dict[str, list[str]] = field(default_factory=dict)
    checked: str = ""

    @property
    def name(self) -> str:
        """The library, the model, and what is particular about the case."""
        parts = (f"{self.library}:{self.model}", self.variant, self.of)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class TriedModels:
    """All models that methods were tried on, with the releases of their libraries."""

    releases: dict[str, str]
    methods: tuple[str, ...]
    models: tuple[TriedModel, ...]

    def count_running(self, method: str, models: Iterable[TriedModel] | None = None) -> int:
        """Count the models on which a method runs."""
        return sum(method in one.methods for one in (self.models if models is None else models))

    def group_by_task(self) -> dict[str, list[TriedModel]]:
        """Group the models by what they do, the task of most models first."""
        groups: dict[str, list[TriedModel]] = {}
        for one in self.models:
            groups.setdefault(one.task, []).append(one)
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))

    def find_family(self, name: str) -> list[TriedModel]:
        """Find the models of a family, or of a class, whatever the case of the letters.

        Raises:
            WhenceError: None of them was tried.
        """
        wanted = _simplify(name)
        found = [
            one for one in self.models if wanted in (_simplify(one.family), _simplify(one.model))
        ]
        if not found:
            families = sorted({one.family for one in self.models})
            raise WhenceError(
                f"No model of a family '{name}' was tried.{suggest_names(name, families)} Any "
                f"differentiable model can be explained: `whence models FOLDER` tries methods on "
                f"yours."
            )
        return found


@cache
def read_tried_models(file: Path = RESULTS) -> TriedModels:
    """Read what was found when methods were tried; the file comes with whence."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    methods = tuple(content["methods"])
    models = [_parse_model(one, methods) for one in content["models"]]
    return TriedModels(content["releases"], methods, tuple(models))


def _parse_model(found: dict[str, Any], methods: tuple[str, ...]) -> TriedModel:
    refused: dict[str, list[str]] = found.get("refused", {})
    out = {method for names in refused.values() for method in names}
    running = tuple(method for method in methods if method not in out)
    return TriedModel(**{**found, "methods": running, "refused": refused})


def _simplify(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
