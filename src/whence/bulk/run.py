"""Reading, explaining and writing many inputs, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from whence import methods, render
from whence.bulk import summary
from whence.bulk.naming import Planned, check_free, plan
from whence.bulk.writing import moved_when_whole
from whence.defaults import METHOD
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.sources import Source
from whence.models import LoadedModel, Prepared, load
from whence.models.loaded import one_sample
from whence.tracing import rules as rule_sets


@dataclass(frozen=True)
class Request:
    """What to explain with, and where to put it.

    Attributes:
        out: The folder for results.
        model: As `whence.models.load` takes it.
        weights: A weights file.
        device: Where to run.
        targets: Classes to explain, by name or index; the predicted one if there are none.
        top: Instead, the number of highest classes.
        method: Name of the method.
        rules: Name of the rule set.
        options: Options of the method.
        batch: How many inputs are in memory at once.
        memory: Gibibytes that methods of many forward passes may take.
        image_format: ``"png"`` or ``"svg"``.
        force: Whether results may replace files.
    """

    out: Path
    model: str | None = None
    weights: Path | None = None
    device: str | None = None
    targets: tuple[str, ...] = ()
    top: int | None = None
    method: str = METHOD
    rules: str = "stable"
    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 16
    memory: float | None = None
    image_format: str = "png"
    force: bool = False

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


@dataclass(frozen=True)
class Result:
    """What became of one input.

    Attributes:
        entry: Its entry in the summary.
        explanation: The explanation; None if it failed.
    """

    entry: dict[str, Any]
    explanation: Explanation | None = None


def run(
    request: Request,
    sources: Sequence[Source],
    report: Callable[[Result], None] = lambda _: None,
) -> dict[str, Any]:
    """Explain all inputs, and write a file for each part of each result.

    Args:
        request: How.
        sources: What.
        report: Is told of each input as soon as it is done.

    Returns:
        The summary, inputs in the order they were given in.

    Raises:
        WhenceError: The request cannot be met for any input. What is wrong with single inputs is
            in the summary.
    """
    methods.build(request.method, request.options)
    rule_sets.get(request.rules)
    classes = request.classes()
    planned = plan(sources, request.image_format)
    with moved_when_whole(request.out):
        pass  # so that a folder that cannot be written to is known before the work
    earlier = summary.earlier_entries(request.out, request.force)
    if not request.force:
        check_free(planned, request.out)
    models = _models(request, sources)
    for loaded in models.values():
        loaded.check(**classes)
    entries: dict[str, dict[str, Any]] = {}
    try:
        for result in _results(request, planned, models, classes):
            entries[result.entry["name"]] = result.entry
            report(result)
    finally:  # also when interrupted: what is in the folder is told
        ordered = [entries[one.name] for one in planned if one.name in entries]
        if ordered:
            summary.write(request.out, ordered, earlier)
    return summary.document(request.out, ordered)


def _models(request: Request, sources: Sequence[Source]) -> dict[str, LoadedModel]:
    """The model for each kind of input, if there is one."""
    if request.model is not None or request.weights is not None:
        loaded = load(request.model, None, request.weights, request.device)
        return {loaded.kind: loaded}
    kinds = sorted({source.kind for source in sources})
    return {kind: load(None, kind, None, request.device) for kind in kinds}


def _results(
    request: Request,
    planned: Sequence[Planned],
    models: dict[str, LoadedModel],
    classes: dict[str, Any],
) -> Iterator[Result]:
    for one in planned:
        if one.source.kind not in models:
            (other,) = models.values()
            error = f"The model '{other.name}' explains {other.kind}s, not {one.source.kind}s."
            yield Result(summary.failed(one, other.name, error))
    explains = methods.describe(request.method).inputs
    for kind, loaded in models.items():
        worker = _Worker(request, loaded, classes)
        same = [one for one in planned if one.source.kind == kind]
        if kind not in explains and models.keys() & set(explains):
            # There are inputs that it explains: these have failed, not the request.
            error = f"Method '{request.method}' explains {' and '.join(explains)}s only."
            yield from (worker.failed(one, WhenceError(error)) for one in same)
            continue
        for start in range(0, len(same), request.batch):
            yield from worker.work(same[start : start + request.batch])


class _Worker:
    """Explains inputs with one model."""

    def __init__(self, request: Request, loaded: LoadedModel, classes: dict[str, Any]) -> None:
        self.request = request
        self.loaded = loaded
        self.how = {
            **classes,
            "method": request.method,
            "rules": request.rules,
            "memory": request.memory,
            **request.options,
        }
        self.worked_before = False

    def work(self, batch: Sequence[Planned]) -> Iterator[Result]:
        """Read a batch and explain it, together where prepared sizes agree."""
        groups: dict[Any, list[tuple[Planned, Any]]] = {}
        for one in batch:
            try:
                content = one.source.read()
                prepared = self.loaded.prepare([content])
            except WhenceError as error:
                yield self.failed(one, error)
                continue
            except Exception as error:  # one odd input must not end the others
                said = f"It cannot be prepared: {type(error).__name__}: {error}."
                yield self.failed(one, WhenceError(said))
                continue
            if isinstance(prepared.inputs, torch.Tensor):
                groups.setdefault(prepared.inputs.shape, []).append((one, prepared))
            else:
                groups.setdefault("text", []).append((one, content))
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

    def _explain_group(self, group: list[Planned], prepared: Prepared) -> Iterator[Result]:
        try:
            explanation = self._explain(prepared)
        except WhenceError as error:
            if len(group) == 1 and not self.worked_before:
                # Nothing is known to work: the model or the request is wrong, not this input.
                raise
            if len(group) == 1:
                yield self.failed(group[0], error)
                return
            for sample, one in enumerate(group):
                yield from self._explain_group([one], self._part(prepared, sample))
            return
        self.worked_before = True
        for sample, one in enumerate(group):
            alone = one_sample(explanation, sample, prepared)
            try:
                self._write(one, alone, prepared.shown[sample])
            except WhenceError as error:
                yield self.failed(one, error)
                continue
            entry = summary.found(one, self.loaded.name, alone, prepared.notes[sample])
            yield Result(entry, alone)

    def _explain(self, prepared: Prepared) -> Explanation:
        try:
            return self.loaded.explain(prepared, **self.how)
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            raise WhenceError(
                "The device's memory is too small; give a smaller --batch or --memory."
            ) from None
        except Exception as error:  # a model may raise anything
            said = str(error).split("\n")[0].rstrip(".")
            raise WhenceError(f"The model failed: {type(error).__name__}: {said}.") from error

    def _write(self, one: Planned, explanation: Explanation, shown: Any) -> None:
        with moved_when_whole(self.request.out) as folder:
            explanation.save(folder / one.files["explanation"])
            if "figure" in one.files:
                figure = render.figure(shown, explanation, title=one.name)
                figure.save(folder / one.files["figure"])
            else:
                page = render.text_page(explanation, title=one.name)
                (folder / one.files["page"]).write_text(page, encoding="utf-8")

    def failed(self, one: Planned, error: WhenceError) -> Result:
        """The result of an input that could not be explained."""
        if self.request.force:  # an earlier result of that name is not this input's
            for file in one.files.values():
                (self.request.out / file).unlink(missing_ok=True)
        return Result(summary.failed(one, self.loaded.name, str(error)))
