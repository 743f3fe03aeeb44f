"""Trust benchmark: how much scores change with noise, rounding and random weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from whence import methods
from whence.benchmark.columns import Columns
from whence.benchmark.photos import PreparedPhoto, compute_by_shape, prepare_photo
from whence.benchmark.protocols.base import (
    BenchmarkProtocol,
    Curve,
    Metric,
    ModelInputs,
    Row,
    explain_batch,
    has_numbers,
    keep_filled,
    to_numbers,
)
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.methods import MethodSpecification
from whence.metrics.trust import (
    agreement,
    completeness_error,
    randomization_cascade,
    sensitivity,
)
from whence.models import LoadedModel
from whence.models.forward import compute_logits, stack_on_device

if TYPE_CHECKING:
    from whence.datasets import Sample


@dataclass
class TrustProtocol(BenchmarkProtocol["PreparedPhoto | Sample"]):
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

    @override
    def start(self, names: Sequence[str], seed: int) -> None:
        self._seed = seed
        self._cascaded = set(names[: self.cascade])

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto | Sample:
        return prepare_photo(loaded, sample) if loaded.kind == "image" else sample

    @override
    def compute_rows(
        self,
        loaded: LoadedModel,
        samples: Sequence[PreparedPhoto | Sample],
        method: MethodSpecification,
    ) -> list[Row]:
        photos = [sample for sample in samples if isinstance(sample, PreparedPhoto)]
        if len(photos) < len(samples):
            # One by one: noise and rounding of a text must not depend on others' padding. So each
            # has a length of its own, for which compiling does not pay.
            plain = loaded.to_eager()
            texts = [sample for sample in samples if not isinstance(sample, PreparedPhoto)]
            return [self._compute_text_row(plain, sample, method) for sample in texts]

        def compute(group: list[PreparedPhoto]) -> list[Row]:
            pixels = stack_on_device([one.pixels for one in group], loaded.device)
            return self._compute_rows(loaded, [one.name for one in group], pixels, method)

        return compute_by_shape(photos, compute)

    def _compute_text_row(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> Row:
        inputs = loaded.prepare([sample.content]).inputs
        return self._compute_rows(loaded, [sample.name], dict(inputs), method)[0]

    def _compute_rows(
        self,
        loaded: LoadedModel,
        names: Sequence[str],
        inputs: ModelInputs,
        method: MethodSpecification,
    ) -> list[Row]:
        explanation = explain_batch(loaded, inputs, method)
        classes = explanation.target.tolist()
        rows: list[Row] = [
            {"sample": name, "predicted": target}
            for name, target in zip(names, classes, strict=True)
        ]
        precise = self._explain_in_double(loaded, inputs, method, classes)
        for name, values in agreement(explanation.scores, precise).items():
            for row, value in zip(rows, to_numbers(values), strict=True):
                row[f"float64_{name}"] = value
        for at, row in enumerate(rows):
            row["sensitivity"] = self._measure_sensitivity(
                loaded, _select(inputs, [at]), method, classes[at]
            )
        errors = self._measure_completeness(loaded, inputs, method, explanation)
        if errors is not None:
            for row, value in zip(rows, to_numbers(errors), strict=True):
                row["completeness_error"] = value
        chosen = [
            at for at, name in enumerate(names) if self._cascaded is None or name in self._cascaded
        ]
        if chosen:
            alike = self._randomize_layers(
                loaded, _select(inputs, chosen), method, [classes[i] for i in chosen]
            )
            for at, values in zip(chosen, alike.tolist(), strict=True):
                rows[at]["cascade"] = values
                rows[at]["cascade_mean"] = sum(values) / len(values)
                rows[at]["cascade_last"] = values[-1]
        return rows

    def _explain_in_double(
        self,
        loaded: LoadedModel,
        inputs: ModelInputs,
        method: MethodSpecification,
        classes: list[int],
    ) -> Tensor:
        if self._double is None or self._double_of is not loaded.model:
            model = copy.deepcopy(loaded.model).double()
            self._double = replace(loaded, model=model, compile=False, precision=None)
            self._double_of = loaded.model
        given = inputs.double() if isinstance(inputs, Tensor) else inputs
        return _explain_classes(self._double, given, method, classes)

    def _measure_sensitivity(
        self, loaded: LoadedModel, inputs: ModelInputs, method: MethodSpecification, target: int
    ) -> float | None:
        """Measure one sample, so that its noise is the same in every batch."""
        noisy, rest = (inputs, None) if isinstance(inputs, Tensor) else _embed(loaded, inputs)

        def explain(values: Tensor) -> Tensor:
            given = values if rest is None else {**rest, "inputs_embeds": values}
            return _explain_classes(loaded, given, method, [target])

        try:
            found = sensitivity(explain, noisy, self.radius, self.draws, self._seed)
        except WhenceError:
            if rest is None:
                raise
            return None  # a text model that takes no embeddings
        return float(found[0])

    def _measure_completeness(
        self,
        loaded: LoadedModel,
        inputs: ModelInputs,
        method: MethodSpecification,
        explanation: Explanation,
    ) -> Tensor | None:
        """The relative error of the scores' sum; None if the method promises no sum."""
        built: Any = methods.build(method.name, method.options)
        promises = methods.get(method.name) is methods.get("integrated_gradients")
        if not promises or built.gradients != "plain":
            return None
        if isinstance(inputs, Tensor):
            empty = compute_logits(loaded, torch.full_like(inputs, built.baseline))
        else:
            embeddings, rest = _embed(loaded, inputs)
            filled = torch.full_like(embeddings, built.baseline)
            empty = compute_logits(loaded, {**rest, "inputs_embeds": filled})
        at = explanation.target[:, None]
        outputs = (logits.gather(1, at)[:, 0] for logits in (explanation.logits, empty))
        return completeness_error(explanation.scores.double().sum(1), *outputs)["relative"]

    def _randomize_layers(
        self,
        loaded: LoadedModel,
        inputs: ModelInputs,
        method: MethodSpecification,
        classes: list[int],
    ) -> Tensor:
        """Correlation of ranks with the model's own maps, (samples, layers), top layer first."""

        def explain(model: nn.Module) -> Tensor:
            return _explain_classes(
                replace(loaded, model=model, compile=False), inputs, method, classes
            )

        found = [one.spearman for one in randomization_cascade(loaded.model, explain, self._seed)]
        return torch.stack(found, 1).double().cpu()

    @override
    def list_metrics(self, results: Mapping[str, Columns]) -> list[Metric]:
        found = [
            Metric("sensitivity", ("sensitivity",), "lower", digits=4),
            Metric("completeness error", ("completeness_error",), "lower", digits=4),
            Metric("float64 difference", ("float64_difference",), "lower", digits=7),
            Metric("float64 rank correlation", ("float64_spearman",), "higher", digits=4),
            Metric("randomised, mean", ("cascade_mean",), "lower", digits=3),
            Metric("randomised, all layers", ("cascade_last",), "lower", digits=3),
        ]
        return keep_filled(results, found)

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        if not has_numbers(results, "cascade"):
            return []
        layers = max(c["cascade"].shape[1] for c in results.values() if c["cascade"].ndim == 2)
        steps = tuple(float(n) for n in range(1, layers + 1))
        return [Curve("rank correlation", "cascade", steps, "layers made random", False)]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
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


def _explain_classes(
    loaded: LoadedModel, inputs: ModelInputs, method: MethodSpecification, classes: list[int]
) -> Tensor:
    return explain_batch(loaded, inputs, method, target=classes).scores.detach()


def _select(inputs: ModelInputs, samples: list[int]) -> ModelInputs:
    """The inputs of some samples of a batch."""
    if isinstance(inputs, Tensor):
        return inputs[samples]
    return {name: value[samples] for name, value in inputs.items()}


def _embed(loaded: LoadedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Embed a text's tokens; the model's other inputs are returned beside."""
    model: Any = loaded.model
    embeddings = model.get_input_embeddings()(inputs["input_ids"]).detach()
    return embeddings, {name: value for name, value in inputs.items() if name != "input_ids"}
