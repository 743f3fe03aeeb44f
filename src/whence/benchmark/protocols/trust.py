"""Trust: how far maps move with noise and rounding, and whether they know the model's weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from whence import methods
from whence.benchmark.columns import Columns
from whence.benchmark.pixels import Seen, by_shape, see
from whence.benchmark.protocols.base import (
    Curve,
    Metric,
    Protocol,
    Row,
    explained,
    has,
    numbers,
    present,
)
from whence.errors import WhenceError
from whence.methods.specification import Chosen
from whence.metrics.trust import (
    agreement,
    completeness_error,
    randomization_cascade,
    sensitivity,
)
from whence.models import LoadedModel
from whence.models.forward import logits_of, on_device

if TYPE_CHECKING:
    from whence.datasets import Sample


@dataclass
class Trust(Protocol):
    """Four questions on the explanation of the predicted class.

    Sensitivity: how far does it move under small noise (Yeh et al., 2019)? Completeness: do scores
    add up to what they explain, where the method says so? Rounding: how far is it from the same in
    float64? Randomisation: how alike are maps once the weights are made random, from the logits
    down (Adebayo et al., 2018)?

    Attributes:
        radius: Of the noise, in the units of the model's input (normalised pixels, embeddings).
        draws: Of noise.
        cascade: On how many samples layers are made random.
    """

    name: ClassVar[str] = "trust"
    title: ClassVar[str] = "Trust"
    kinds: ClassVar[tuple[str, ...]] = ("image", "text")
    main: ClassVar[str] = "sensitivity"
    main_column: ClassVar[str] = "sensitivity"

    radius: float = 0.02
    draws: int = 10
    cascade: int = 8
    _seed: int = field(default=0, init=False, repr=False)
    _cascaded: set[str] | None = field(default=None, init=False, repr=False)
    _double: LoadedModel | None = field(default=None, init=False, repr=False)
    _double_of: nn.Module | None = field(default=None, init=False, repr=False)
    _layers: int = field(default=0, init=False, repr=False)

    def begin(self, names: Sequence[str], seed: int) -> None:  # noqa: D102
        self._seed = seed
        self._cascaded = set(names[: self.cascade])

    def ready(self, loaded: LoadedModel, sample: Sample) -> Any:  # noqa: D102
        return see(loaded, sample) if loaded.kind == "image" else sample

    def rows(  # noqa: D102
        self, loaded: LoadedModel, samples: Sequence[Any], method: Chosen
    ) -> list[Row]:
        if loaded.kind == "text":
            # One by one: noise and rounding of a text must not depend on others' padding. So each
            # has a length of its own, for which compiling does not pay.
            plain = loaded.plain()
            return [self._text_row(plain, sample, method) for sample in samples]
        seen = [s if isinstance(s, Seen) else see(loaded, s) for s in samples]
        rows: dict[int, Row] = {}
        for places in by_shape(seen):
            pixels = on_device([seen[at].pixels for at in places], loaded.device)
            names = [seen[at].sample.name for at in places]
            rows.update(zip(places, self._rows(loaded, names, pixels, method), strict=True))
        return [rows[at] for at in range(len(seen))]

    def _text_row(self, loaded: LoadedModel, sample: Sample, method: Chosen) -> Row:
        inputs: Any = loaded.prepare([sample.content]).inputs
        return self._rows(loaded, [sample.name], dict(inputs), method)[0]

    def _rows(
        self, loaded: LoadedModel, names: Sequence[str], inputs: Any, method: Chosen
    ) -> list[Row]:
        explanation = explained(loaded, inputs, method)
        classes = explanation.target.tolist()
        rows: list[Row] = [
            {"sample": name, "predicted": target}
            for name, target in zip(names, classes, strict=True)
        ]
        precise = self._in_double(loaded, inputs, method, classes)
        for name, values in agreement(explanation.scores, precise).items():
            for row, value in zip(rows, numbers(values), strict=True):
                row[f"float64_{name}"] = value
        for at, row in enumerate(rows):
            row["sensitivity"] = self._sensitivity(loaded, _one(inputs, at), method, classes[at])
        errors = self._completeness(loaded, inputs, method, explanation)
        if errors is not None:
            for row, value in zip(rows, numbers(errors), strict=True):
                row["completeness_error"] = value
        chosen = [
            at for at, name in enumerate(names) if self._cascaded is None or name in self._cascaded
        ]
        if chosen:
            alike = self._cascade(
                loaded, _some(inputs, chosen), method, [classes[i] for i in chosen]
            )
            for at, values in zip(chosen, alike.tolist(), strict=True):
                rows[at]["cascade"] = values
                rows[at]["cascade_mean"] = sum(values) / len(values)
                rows[at]["cascade_last"] = values[-1]
        return rows

    def _in_double(
        self, loaded: LoadedModel, inputs: Any, method: Chosen, classes: list[int]
    ) -> Tensor:
        if self._double is None or self._double_of is not loaded.model:
            model = copy.deepcopy(loaded.model).double()
            self._double = replace(loaded, model=model, fast=False, precision=None)
            self._double_of = loaded.model
        given = inputs.double() if isinstance(inputs, Tensor) else inputs
        return _scores(self._double, given, method, classes)

    def _sensitivity(
        self, loaded: LoadedModel, inputs: Any, method: Chosen, target: int
    ) -> float | None:
        """Of one sample, so that its noise is the same in every batch."""
        noisy, rest = (inputs, None) if isinstance(inputs, Tensor) else _embedded(loaded, inputs)

        def explain(values: Tensor) -> Tensor:
            given = values if rest is None else {**rest, "inputs_embeds": values}
            return _scores(loaded, given, method, [target])

        try:
            found = sensitivity(explain, noisy, self.radius, self.draws, self._seed)
        except WhenceError:
            if rest is None:
                raise
            return None  # a text model that takes no embeddings
        return float(found[0])

    def _completeness(
        self, loaded: LoadedModel, inputs: Any, method: Chosen, explanation: Any
    ) -> Tensor | None:
        """How far scores are from their sum, relative; None if the method promises none."""
        built: Any = methods.build(method.name, method.options)
        promises = methods.get(method.name) is methods.get("integrated_gradients")
        if not promises or built.gradients != "plain":
            return None
        if isinstance(inputs, Tensor):
            empty = logits_of(loaded, torch.full_like(inputs, built.baseline))
        else:
            embeddings, rest = _embedded(loaded, inputs)
            filled = torch.full_like(embeddings, built.baseline)
            empty = logits_of(loaded, {**rest, "inputs_embeds": filled})
        at = explanation.target[:, None]
        outputs = (logits.gather(1, at)[:, 0] for logits in (explanation.logits, empty))
        return completeness_error(explanation.scores.double().sum(1), *outputs)["relative"]

    def _cascade(
        self, loaded: LoadedModel, inputs: Any, method: Chosen, classes: list[int]
    ) -> Tensor:
        """Correlation of ranks with the model's own maps, (samples, layers), top layer first."""

        def explain(model: nn.Module) -> Tensor:
            return _scores(replace(loaded, model=model, fast=False), inputs, method, classes)

        found = [one.spearman for one in randomization_cascade(loaded.model, explain, self._seed)]
        self._layers = len(found)
        return torch.stack(found, 1).double().cpu()

    def metrics(self, results: Mapping[str, Columns]) -> list[Metric]:  # noqa: D102
        found = [
            Metric("sensitivity", ("sensitivity",), "lower", digits=4),
            Metric("completeness error", ("completeness_error",), "lower", digits=4),
            Metric("float64 difference", ("float64_difference",), "lower", digits=7),
            Metric("float64 rank correlation", ("float64_spearman",), "higher", digits=4),
            Metric("randomised, mean", ("cascade_mean",), "lower", digits=3),
            Metric("randomised, all layers", ("cascade_last",), "lower", digits=3),
        ]
        return present(results, found)

    def curves(self, results: Mapping[str, Columns]) -> list[Curve]:  # noqa: D102
        if not has(results, "cascade"):
            return []
        layers = max(c["cascade"].shape[1] for c in results.values() if c["cascade"].ndim == 2)
        steps = tuple(float(n) for n in range(1, layers + 1))
        return [Curve("rank correlation", "cascade", steps, "layers made random", False)]

    def notes(self, results: Mapping[str, Columns]) -> list[str]:  # noqa: D102
        first = next(iter(results.values()))
        cascaded = int(np.isfinite(first["cascade_mean"]).sum()) if "cascade_mean" in first else 0
        return [
            f"The predicted class is explained. Sensitivity: largest relative change over "
            f"{self.draws} draws of noise of ±{self.radius:g}. Float64 difference: relative to a "
            f"map's largest score. Randomised: rank correlation of absolute scores with those of "
            f"the model itself, layers made random from the logits down, on {cascaded} "
            f"sample(s).",
            "Completeness error: relative, for methods whose scores are to add up to the change of "
            "the logit.",
        ]


def _scores(loaded: LoadedModel, inputs: Any, method: Chosen, classes: list[int]) -> Tensor:
    return explained(loaded, inputs, method, target=classes).scores.detach()


def _one(inputs: Any, at: int) -> Any:
    return _some(inputs, [at])


def _some(inputs: Any, places: list[int]) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[places]
    return {name: value[places] for name, value in inputs.items()}


def _embedded(loaded: LoadedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """The embeddings of a text's tokens, and what else the model takes."""
    model: Any = loaded.model
    embeddings = model.get_input_embeddings()(inputs["input_ids"]).detach()
    return embeddings, {name: value for name, value in inputs.items() if name != "input_ids"}
