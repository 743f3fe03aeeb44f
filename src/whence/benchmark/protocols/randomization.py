"""Randomisation benchmark: whether maps become more complex once all weights are random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence.benchmark.columns import Columns
from whence.benchmark.photos import PreparedPhoto, compute_by_shape, prepare_photo
from whence.benchmark.protocols.base import (
    BenchmarkProtocol,
    Metric,
    ModelInputs,
    Row,
    add_columns,
    explain_batch,
)
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.methods import MethodSpecification
from whence.metrics.randomization import (
    BINS,
    choose_bins,
    complexity_rise,
    histogram_entropy,
)
from whence.metrics.trust import randomize_model, spearman
from whence.models import LoadedModel
from whence.models.forward import stack_on_device

if TYPE_CHECKING:
    from whence.datasets import Sample


@dataclass
class RandomizationProtocol(BenchmarkProtocol["PreparedPhoto | Sample"]):
    """Maps of a model that has learned nothing should be more complex than the model's own.

    After "Sanity Checks Revisited" (Hedström et al., 2024), the efficient test: the predicted class
    is explained twice, by the model and by one copy of it whose weights are all random. Complexity
    is the entropy of a histogram of the scores (of a photo's upsampled map, of a text's tokens).

    Attributes:
        bins: Of the histogram; a map of few scores has fewer, the square root of their number.
    """

    name: ClassVar[str] = "randomization"
    kinds: ClassVar[tuple[str, ...]] = ("image", "text")
    main: ClassVar[str] = "complexity rise"
    main_column: ClassVar[str] = "rise"

    bins: int = BINS
    _seed: int = field(default=0, init=False, repr=False)
    _random: LoadedModel | None = field(default=None, init=False, repr=False)
    _random_of: nn.Module | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a histogram without bins."""
        if self.bins < 2:
            raise WhenceError(f"The histogram needs two bins or more, not {self.bins}.")

    @override
    def start(self, names: Sequence[str], seed: int) -> None:
        self._seed = seed

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
        if len(photos) == len(samples):
            return compute_by_shape(photos, lambda group: self._judge_photos(loaded, group, method))
        texts = [sample for sample in samples if not isinstance(sample, PreparedPhoto)]
        return self._judge_texts(loaded, texts, method)

    def _judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        pixels = stack_on_device([one.pixels for one in photos], loaded.device)
        rows, both = self._explain_twice(loaded, [one.name for one in photos], pixels, method)
        self._add_figures(rows, *(one.heatmap().flatten(1) for one in both))
        return rows

    def _judge_texts(
        self, loaded: LoadedModel, texts: Sequence[Sample], method: MethodSpecification
    ) -> list[Row]:
        inputs = loaded.prepare([one.content for one in texts]).inputs
        assert not isinstance(inputs, Tensor)
        batch = {name: values for name, values in inputs.items() if isinstance(values, Tensor)}
        rows, both = self._explain_twice(loaded, [one.name for one in texts], batch, method)
        shape = both[0].scores.shape
        tokens = batch.get("attention_mask", torch.ones(shape)).bool().to(both[0].scores.device)
        for at, row in enumerate(rows):
            self._add_figures([row], *(one.scores[at, tokens[at]][None] for one in both))
        return rows

    def _explain_twice(
        self,
        loaded: LoadedModel,
        names: Sequence[str],
        inputs: ModelInputs,
        method: MethodSpecification,
    ) -> tuple[list[Row], tuple[Explanation, Explanation]]:
        """Explain the predicted class by the model and by its random copy; the rows' beginnings."""
        own = explain_batch(loaded, inputs, method)
        classes: list[int] = own.target.tolist()
        random = explain_batch(self._randomize(loaded), inputs, method, classes)
        rows: list[Row] = [
            {"sample": name, "predicted": target}
            for name, target in zip(names, classes, strict=True)
        ]
        return rows, (own, random)

    def _randomize(self, loaded: LoadedModel) -> LoadedModel:
        """The copy with random weights, one for the whole run."""
        if self._random is None or self._random_of is not loaded.model:
            model = randomize_model(loaded.model, self._seed)
            self._random, self._random_of = replace(loaded, model=model), loaded.model
        return self._random

    def _add_figures(self, rows: Sequence[Row], own: Tensor, random: Tensor) -> None:
        bins = choose_bins(own.shape[1], self.bins)
        before, after = (histogram_entropy(scores, bins) for scores in (own, random))
        columns = {
            "complexity": before,
            "random_complexity": after,
            "rise": complexity_rise(before, after),
            "correlation": spearman(own.detach().abs(), random.detach().abs()),
        }
        add_columns(rows, columns)

    @override
    def list_metrics(self) -> list[Metric]:
        return [
            Metric("complexity rise", ("rise",), "higher", factor=100, ranked=True),
            Metric("rank correlation", ("correlation",), "lower", digits=3),
            Metric("complexity", ("complexity",), "lower", digits=3, shown=False),
            Metric(
                "complexity, random weights",
                ("random_complexity",),
                "higher",
                digits=3,
                shown=False,
            ),
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        return [
            f"The predicted class is explained, by the model and by one copy of it whose weights "
            f"are all random. Complexity rise: of the entropy of a histogram of the scores "
            f"({self.bins} bins, fewer where there are few scores), in percent of that of the "
            f"model's own map. Rank correlation: of the absolute scores of both."
        ]
