"""Read, prepare and explain many inputs, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from whence._util.text import first_line
from whence.errors import WhenceError, WhenceWarning
from whence.explanation import Explanation
from whence.inputs.sources import Kind, Source
from whence.methods import registry
from whence.methods.registry import MethodSpecification
from whence.models import LoadedModel, PreparedBatch, load
from whence.models.loaded import select_sample
from whence.models.text_preprocessing import join_batches
from whence.rules import get as get_rules
from whence.targets import token


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

    def check(self) -> None:
        """Refuse wrong settings before a model is loaded."""
        for one in self.methods:
            registry.build(one.name, one.options)
            get_rules(one.rules)
        self.target_arguments()

    def target_arguments(self) -> dict[str, Any]:
        """Return the targets as arguments of `Explainer.explain`."""
        if self.targets and self.top is not None:
            raise WhenceError("Give either --target or --top, not both.")
        if self.position is not None and self.top is not None:
            raise WhenceError("Give either --position or --top, not both.")
        arguments: dict[str, Any] = {}
        if self.against is not None:
            arguments["against"] = self._read_target(self.against)
        if self.top is not None:
            return {"classes": self.top, **arguments}
        named = [self._read_target(one) for one in self.targets]
        if len(named) > 1:
            return {"classes": named, **arguments}
        if named or self.position is not None:
            arguments["target"] = named[0] if named else self._read_target(None)
        return arguments

    def _read_target(self, name: str | None) -> Any:
        """A class or token by its name, or by its number where no name is that number."""
        return name if self.position is None else token(self.position, name)

    def load_models(self, sources: Sequence[Source]) -> dict[Kind, LoadedModel]:
        """Load the model for each kind of input, and check its classes."""
        if self.model is not None or self.weights is not None:
            loaded = self._load(None)
            models = {loaded.kind: loaded}
        else:
            readable = [source for source in sources if source.problem is None]
            kinds = sorted({source.kind for source in readable or sources})
            models = {kind: self._load(kind) for kind in kinds}
        for loaded in models.values():
            loaded.check_classes(**self.target_arguments())
        return models

    def _load(self, kind: Kind | None) -> LoadedModel:
        model, weights, device = self.model, self.weights, self.device
        return load(model, kind, weights, device, compile=self.compile, precision=self.precision)


@dataclass(frozen=True)
class ExplainedInput:
    """The explanations of one input by the methods' labels, or its error."""

    index: int  # which of the inputs it is, counted from 0
    loaded: LoadedModel
    explanations: dict[str, Explanation] = field(default_factory=dict)
    prepared: PreparedBatch | None = None  # a batch of one; None if it failed
    error: str | None = None


def explain_sources(
    settings: ExplainSettings, sources: Sequence[Source], models: dict[Kind, LoadedModel]
) -> Iterator[ExplainedInput]:
    """Explain inputs with the models of `ExplainSettings.load_models`, model by model.

    Inputs that fail come with their error; if no input can be explained, it is raised.
    """
    for index, source in enumerate(sources):
        if source.problem is not None or source.kind not in models:
            other = next(iter(models.values()))
            mismatch = f"The model '{other.title}' explains {other.kind}s, not {source.kind}s."
            yield ExplainedInput(index, other, error=source.problem or mismatch)
    readable = [index for index, source in enumerate(sources) if source.problem is None]
    for kind, loaded in models.items():
        indices = [index for index in readable if sources[index].kind == kind]
        unsuited = _find_unsuited_method(settings, kind, models)
        if unsuited:
            # It explains inputs of the other kind: these inputs fail, and the others do not.
            yield from (ExplainedInput(index, loaded, error=unsuited) for index in indices)
            continue
        explainer = _BatchExplainer(settings, loaded, sources)
        for start in range(0, len(indices), settings.batch):
            yield from explainer.explain(indices[start : start + settings.batch])


def _find_unsuited_method(
    settings: ExplainSettings, kind: Kind, models: dict[Kind, LoadedModel]
) -> str | None:
    for one in settings.methods:
        kinds = one.description.inputs
        if kind not in kinds and set(models) & set(kinds):
            return f"Method '{one.name}' explains {' and '.join(kinds)}s only."
    return None


class _BatchExplainer:
    """Explain batches of inputs with one model."""

    def __init__(
        self, settings: ExplainSettings, loaded: LoadedModel, sources: Sequence[Source]
    ) -> None:
        self.settings = settings
        self.loaded = loaded
        self.sources = sources
        self.has_succeeded = False

    def explain(self, indices: Sequence[int]) -> Iterator[ExplainedInput]:
        """Read and prepare inputs one by one; explain those of one size together."""
        groups: dict[object, dict[int, PreparedBatch]] = {}
        for index in indices:
            try:
                prepared = self.loaded.prepare([self.sources[index].read()])
            except WhenceError as error:
                yield self._fail(index, error)
                continue
            except Exception as error:  # one odd input must not end the others
                message = f"It cannot be prepared: {type(error).__name__}: {error}."
                yield self._fail(index, message)
                continue
            pixels = prepared.inputs if isinstance(prepared.inputs, torch.Tensor) else None
            size = None if pixels is None else pixels.shape  # texts are padded to one length
            groups.setdefault(size, {})[index] = prepared
        for group in groups.values():
            yield from self._explain_group(group)

    def _explain_group(self, group: dict[int, PreparedBatch]) -> Iterator[ExplainedInput]:
        parts = list(group.values())
        batch = parts[0] if len(parts) == 1 else join_batches(parts, self.loaded.tokenizer)
        loaded = self.loaded if self._is_common(batch) else self._eager
        try:
            by_label = {
                one.label: self._explain(loaded, batch, one) for one in self.settings.methods
            }
        except WhenceError as error:
            if len(group) == 1 and not self.has_succeeded:
                # Nothing is known to work: the model or the settings are wrong, not this input.
                raise
            if len(group) == 1:
                yield self._fail(next(iter(group)), error)
                return
            for index, prepared in group.items():
                yield from self._explain_group({index: prepared})
            return
        self.has_succeeded = True
        for sample, (index, prepared) in enumerate(group.items()):
            selected = {label: select_sample(one, sample, batch) for label, one in by_label.items()}
            yield ExplainedInput(index, self.loaded, selected, prepared)

    def _is_common(self, batch: PreparedBatch) -> bool:
        """Whether other batches have this shape: full ones of photos, or of texts that were cut."""
        if len(batch) < self.settings.batch:
            return False
        if isinstance(batch.inputs, torch.Tensor):
            return True
        length: int = batch.inputs["input_ids"].shape[1]
        return length == getattr(self.loaded.preprocessor, "max_length", None)

    @cached_property
    def _eager(self) -> LoadedModel:
        """The model for batches of rare shapes, for which nothing is compiled."""
        return self.loaded.to_eager() if self.settings.compile else self.loaded

    def _explain(
        self, loaded: LoadedModel, batch: PreparedBatch, method: MethodSpecification
    ) -> Explanation:
        request = {**self.settings.target_arguments(), **method.explain_arguments()}
        try:
            settings = self.settings
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WhenceWarning)  # notes of the result say it
                return loaded.explain(
                    batch,
                    **request,
                    of=settings.of,
                    memory=settings.memory,
                    verify=settings.verify,
                )
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            message = "The device's memory is too small; give a smaller --batch or --memory."
            raise WhenceError(message) from None
        except Exception as error:  # a model or a method of the user's may raise anything
            message = f"Model or method failed: {type(error).__name__}: {first_line(error)}."
            raise WhenceError(message) from error

    def _fail(self, index: int, error: WhenceError | str) -> ExplainedInput:
        return ExplainedInput(index, self.loaded, error=str(error))
