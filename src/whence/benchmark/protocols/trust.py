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
    add_columns,
    explain_batch,
)
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.methods import MethodSpecification
from whence.metrics.trust import agreement, completeness_error, randomization_cascade, sensitivity
from whence.models import LoadedModel
from whence.models.forward import compute_logits, stack_on_device

if TYPE_CHECKING:
    from whence.datasets import Sample


@dataclass(frozen=True)
class _Batch:
    """Inputs on the device, with the method and the classes to explain: None for the predicted."""

    loaded: LoadedModel
    method: MethodSpecification
    inputs: ModelInputs
    classes: list[int] | None = None

    def explain(self) -> Explanation:
        """Explain the inputs."""
        return explain_batch(self.loaded, self.inputs, self.method, self.classes)

    def select(self, samples: list[int]) -> _Batch:
        """Some samples of the batch."""
        if isinstance(self.inputs, Tensor):
            inputs: ModelInputs = self.inputs[samples]
        else:
            inputs = {name: value[samples] for name, value in self.inputs.items()}
        classes = None if self.classes is None else [self.classes[at] for at in samples]
        return replace(self, inputs=inputs, classes=classes)

    def embed(self) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Pixels and None; or embeddings of a text's tokens, and the model's other inputs."""
        if isinstance(self.inputs, Tensor):
            return self.inputs, None
        model: Any = self.loaded.model
        embeddings = model.get_input_embeddings()(self.inputs["input_ids"]).detach()
        return embeddings, {k: v for k, v in self.inputs.items() if k != "input_ids"}


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
            inputs = [dict(plain.prepare([one.content]).inputs) for one in texts]
            return [
                self._compute_rows([one.name], _Batch(plain, method, given))[0]
                for one, given in zip(texts, inputs, strict=True)
            ]

        def compute(group: list[PreparedPhoto]) -> list[Row]:
            pixels = stack_on_device([one.pixels for one in group], loaded.device)
            names = [one.name for one in group]
            return self._compute_rows(names, _Batch(loaded, method, pixels))

        return compute_by_shape(photos, compute)

    def _compute_rows(self, names: Sequence[str], batch: _Batch) -> list[Row]:
        explanation = batch.explain()
        classes = explanation.target.tolist()
        batch = replace(batch, classes=classes)
        rows: list[Row] = [
            {"sample": name, "predicted": target}
            for name, target in zip(names, classes, strict=True)
        ]
        compared = agreement(explanation.scores, self._explain_in_double(batch))
        add_columns(rows, {f"float64_{name}": values for name, values in compared.items()})
        noisy = self._measure_sensitivity(batch)
        if noisy is not None:
            add_columns(rows, {"sensitivity": noisy})
        errors = _measure_completeness(batch, explanation)
        if errors is not None:
            add_columns(rows, {"completeness_error": errors})
        chosen = [
            at for at, name in enumerate(names) if self._cascaded is None or name in self._cascaded
        ]
        if chosen:
            alike = self._randomize_layers(batch.select(chosen))
            for at, values in zip(chosen, alike.tolist(), strict=True):
                rows[at]["cascade"] = values
                rows[at]["cascade_mean"] = sum(values) / len(values)
                rows[at]["cascade_last"] = values[-1]
        return rows

    def _explain_in_double(self, batch: _Batch) -> Tensor:
        loaded, inputs = batch.loaded, batch.inputs
        if self._double is None or self._double_of is not loaded.model:
            model = copy.deepcopy(loaded.model).double()
            self._double = replace(loaded, model=model, compile=False, precision=None)
            self._double_of = loaded.model
        given = inputs.double() if isinstance(inputs, Tensor) else inputs
        return replace(batch, loaded=self._double, inputs=given).explain().scores.detach()

    def _measure_sensitivity(self, batch: _Batch) -> Tensor | None:
        """Measure samples (n,), each with the noise that it has in every batch."""
        noisy, rest = batch.embed()

        def explain(values: Tensor) -> Tensor:
            return replace(batch, inputs=_put_back(values, rest)).explain().scores.detach()

        try:
            return sensitivity(explain, noisy, self.radius, self.draws, self._seed, same_noise=True)
        except WhenceError:
            if rest is None:
                raise
            return None  # a text model that takes no embeddings

    def _randomize_layers(self, batch: _Batch) -> Tensor:
        """Correlation of ranks with the model's own maps, (samples, layers), top layer first."""

        def explain(model: nn.Module) -> Tensor:
            loaded = replace(batch.loaded, model=model, compile=False)
            return replace(batch, loaded=loaded).explain().scores.detach()

        layers = randomization_cascade(batch.loaded.model, explain, self._seed)
        return torch.stack([one.spearman for one in layers], 1).double().cpu()

    @override
    def list_metrics(self) -> list[Metric]:
        return [
            Metric("sensitivity", ("sensitivity",), "lower", digits=4),
            Metric("completeness error", ("completeness_error",), "lower", digits=4),
            Metric("float64 difference", ("float64_difference",), "lower", digits=7),
            Metric("float64 rank correlation", ("float64_spearman",), "higher", digits=4),
            Metric("randomised, mean", ("cascade_mean",), "lower", digits=3),
            Metric("randomised, all layers", ("cascade_last",), "lower", digits=3),
        ]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        cascades = [columns["cascade"] for columns in results.values() if "cascade" in columns]
        layers = max((one.shape[1] for one in cascades if one.ndim == 2), default=0)
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


def _measure_completeness(batch: _Batch, explanation: Explanation) -> Tensor | None:
    """The relative error of the scores' sum; None if the method promises no sum."""
    method = batch.method
    built: Any = methods.build(method.name, method.options)
    promises = methods.get(method.name) is methods.get("integrated_gradients")
    if not promises or built.gradients != "plain":
        return None
    values, rest = batch.embed()
    baseline = _put_back(torch.full_like(values, built.baseline), rest)
    at = explanation.target[:, None]
    every_logit = (explanation.logits, compute_logits(batch.loaded, baseline))
    outputs = (logits.gather(1, at)[:, 0] for logits in every_logit)
    return completeness_error(explanation.scores.double().sum(1), *outputs)["relative"]


def _put_back(values: Tensor, rest: Mapping[str, Tensor] | None) -> ModelInputs:
    """The model's inputs with these pixels, or embeddings beside the rest."""
    return values if rest is None else {**rest, "inputs_embeds": values}
