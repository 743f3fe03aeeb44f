"""Reading and explaining many inputs, a batch at a time; what becomes of them is up to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from whence import methods
from whence import rules as rule_sets
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.sources import Kind, Source
from whence.methods.specification import Chosen
from whence.models import LoadedModel, Prepared, load
from whence.models.loaded import one_sample


@dataclass(frozen=True)
class How:
    """What to explain with.

    Attributes:
        methods: The methods; each input is explained by all of them.
        model: As `whence.models.load` takes it.
        weights: A weights file.
        device: Where to run.
        targets: Classes to explain, by name or index; the predicted one if there are none.
        top: Instead, the number of highest classes.
        batch: How many inputs are in memory at once.
        memory: Gibibytes that methods of many forward passes may take.
        fast: Whether to compile what is done to batches of one shape.
        precision: In what matrix products are computed.
    """

    methods: tuple[Chosen, ...]
    model: str | None = None
    weights: Path | None = None
    device: str | None = None
    targets: tuple[str, ...] = ()
    top: int | None = None
    batch: int = 16
    memory: float | None = None
    fast: bool = False
    precision: str | None = None

    def check(self) -> None:
        """Refuse what is known to be wrong before a model is loaded.

        Raises:
            WhenceError: There is no such method, option or rule set, or classes contradict.
        """
        for one in self.methods:
            methods.build(one.name, one.options)
            rule_sets.get(one.rules)
        self.classes()

    def classes(self) -> dict[str, Any]:
        """Which classes, as `Explainer.explain` takes them.

        Raises:
            WhenceError: Both targets and a number were given.
        """
        if self.targets and self.top is not None:
            raise WhenceError("Give either --target or --top, not both.")
        if self.top is not None:
            return {"classes": self.top}
        if len(self.targets) == 1:
            return {"target": self.targets[0]}
        return {"classes": list(self.targets)} if self.targets else {}

    def load(self, sources: Sequence[Source]) -> dict[str, LoadedModel]:
        """The model for each kind of input, if there is one, with classes that it has.

        Raises:
            WhenceError: There is no such model, or it lacks a class.
        """

        def loaded_for(kind: Kind | None) -> LoadedModel:
            return load(
                self.model,
                kind,
                self.weights,
                self.device,
                fast=self.fast,
                precision=self.precision,
            )

        if self.model is not None or self.weights is not None:
            loaded = loaded_for(None)
            models = {str(loaded.kind): loaded}
        else:
            readable = [source for source in sources if source.problem is None]
            kinds = sorted({source.kind for source in readable or sources})
            models = {str(kind): loaded_for(kind) for kind in kinds}
        for loaded in models.values():
            loaded.check(**self.classes())
        return models


@dataclass(frozen=True)
class Explained:
    """What became of one input.

    Attributes:
        place: Which of the inputs it is, counted from 0.
        loaded: The model.
        explanations: By the methods' labels; empty if it failed.
        prepared: The input as the model took it, a batch of one; None if it failed.
        error: Why it failed.
    """

    place: int
    loaded: LoadedModel
    explanations: dict[str, Explanation] = field(default_factory=dict)
    prepared: Prepared | None = None
    error: str | None = None


def explained(
    how: How, sources: Sequence[Source], models: dict[str, LoadedModel]
) -> Iterator[Explained]:
    """Explain inputs, in an order that suits the models.

    Args:
        how: With what.
        sources: The inputs.
        models: What `How.load` loaded for them.

    Raises:
        WhenceError: The request cannot be met for any input. What is wrong with single inputs is
            told of each.
    """
    for place, source in enumerate(sources):
        if source.problem is not None or source.kind not in models:
            other = next(iter(models.values()))
            wrong = f"The model '{other.name}' explains {other.kind}s, not {source.kind}s."
            yield Explained(place, other, error=source.problem or wrong)
    usable = [(at, source.kind) for at, source in enumerate(sources) if source.problem is None]
    for kind, loaded in models.items():
        places = [at for at, kind_of in usable if kind_of == kind]
        unsuited = _for_others_only(how, kind, models)
        if unsuited:
            # There are inputs that it explains: these have failed, not the request.
            yield from (Explained(place, loaded, error=unsuited) for place in places)
            continue
        worker = _Worker(how, loaded, sources)
        for start in range(0, len(places), how.batch):
            yield from worker.work(places[start : start + how.batch])


def _for_others_only(how: How, kind: str, models: dict[str, LoadedModel]) -> str | None:
    for one in how.methods:
        explains = one.about.inputs
        if kind not in explains and models.keys() & set(explains):
            return f"Method '{one.name}' explains {' and '.join(explains)}s only."
    return None


class _Worker:
    """Explains inputs with one model."""

    def __init__(self, how: How, loaded: LoadedModel, sources: Sequence[Source]) -> None:
        self.how = how
        self.loaded = loaded
        self.sources = sources
        self.worked_before = False

    def work(self, places: Sequence[int]) -> Iterator[Explained]:
        """Read a batch and explain it, together where prepared sizes agree."""
        groups: dict[Any, list[tuple[int, Any]]] = {}
        for place in places:
            try:
                content = self.sources[place].read()
                prepared = self.loaded.prepare([content])
            except WhenceError as error:
                yield self._failed(place, error)
                continue
            except Exception as error:  # one odd input must not end the others
                said = f"It cannot be prepared: {type(error).__name__}: {error}."
                yield self._failed(place, said)
                continue
            if isinstance(prepared.inputs, torch.Tensor):
                groups.setdefault(prepared.inputs.shape, []).append((place, prepared))
            else:
                groups.setdefault("text", []).append((place, content))
        for group in groups.values():
            yield from self._explain_group([p for p, _ in group], self._join([c for _, c in group]))

    def _join(self, parts: list[Any]) -> Prepared:
        if isinstance(parts[0], str):
            return self.loaded.prepare(parts)
        pixels = torch.cat([part.inputs for part in parts])
        shown = [image for part in parts for image in part.shown]
        return Prepared(pixels, shown, [notes for part in parts for notes in part.notes])

    def _part(self, prepared: Prepared, sample: int) -> Prepared:
        chosen = slice(sample, sample + 1)
        if isinstance(prepared.inputs, torch.Tensor):
            return Prepared(prepared.inputs[chosen], prepared.shown[chosen], prepared.notes[chosen])
        return self.loaded.prepare(prepared.shown[chosen])

    def _explain_group(self, group: list[int], prepared: Prepared) -> Iterator[Explained]:
        try:
            found = {one.label: self._explain(prepared, one) for one in self.how.methods}
        except WhenceError as error:
            if len(group) == 1 and not self.worked_before:
                # Nothing is known to work: the model or the request is wrong, not this input.
                raise
            if len(group) == 1:
                yield self._failed(group[0], error)
                return
            for sample, place in enumerate(group):
                yield from self._explain_group([place], self._part(prepared, sample))
            return
        self.worked_before = True
        for sample, place in enumerate(group):
            alone = {label: one_sample(one, sample, prepared) for label, one in found.items()}
            yield Explained(place, self.loaded, alone, self._part(prepared, sample))

    def _explain(self, prepared: Prepared, method: Chosen) -> Explanation:
        asked = {**self.how.classes(), **method.request(), "memory": self.how.memory}
        try:
            return self.loaded.explain(prepared, **asked)
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            raise WhenceError(
                "The device's memory is too small; give a smaller --batch or --memory."
            ) from None
        except Exception as error:  # a model or a method of the user's may raise anything
            said = str(error).split("\n")[0].rstrip(".")
            raise WhenceError(f"Model or method failed: {type(error).__name__}: {said}.") from error

    def _failed(self, place: int, error: WhenceError | str) -> Explained:
        return Explained(place, self.loaded, error=str(error))
