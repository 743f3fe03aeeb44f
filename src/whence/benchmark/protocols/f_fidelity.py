"""F-Fidelity benchmark: what a copy that is used to missing parts loses without some of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence._util.random import SeededRandom
from whence.benchmark.columns import Columns
from whence.benchmark.fine_tuning import FineTuning, Quality, load_copy, obtain_copy
from whence.benchmark.masked_samples import (
    PhotoMasker,
    TextMasker,
    count_cells,
    count_words,
    score_cells,
)
from whence.benchmark.mean_color import measure_mean_color
from whence.benchmark.photos import PreparedPhoto, compute_by_shape, prepare_photo
from whence.benchmark.protocols.base import (
    BenchmarkProtocol,
    Curve,
    Metric,
    Row,
    add_columns,
    explain_batch,
)
from whence.benchmark.texts import PreparedText, prepare_text
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.curves import compute_curves
from whence.metrics.deletion import FRACTIONS, Run, count_units, rank_units, run_without
from whence.metrics.fidelity import (
    ALPHA,
    BETA,
    compute_fidelity,
    draw_removed,
    removal_chances,
)
from whence.metrics.pixels import Fill
from whence.metrics.words import sum_over_words
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

_SIDES = {"plus": "Fid+", "minus": "Fid-"}


class _JudgedBatch(NamedTuple):
    """Scores of units (samples, units) for classes (samples,), and the copy without some units.

    `units` (samples,) are how many units each sample has; `run` is that of `run_without`; with
    `multi_label` several classes can hold at once.
    """

    names: list[str]
    scores: Tensor
    units: Tensor
    classes: Tensor
    run: Run
    multi_label: bool


@dataclass
class FFidelityProtocol(BenchmarkProtocol["PreparedPhoto | PreparedText"]):
    """A copy is fine-tuned with randomly removed units, then units are removed by their scores.

    After Zheng et al. (ICLR 2025). Units are patches, or words, which become the mask token. For
    explanations of 10, 20, … 90 % of the units, each unit of the explanation (Fid+) or of the rest
    (Fid-) is removed with the chance alpha, or less, so that a share beta of all is removed on
    average at most: that is what the copy was fine-tuned on. The figures are what the explained
    class loses, the mean over sizes and draws.

    Attributes:
        alpha: The chance with which a unit is removed.
        beta: The share of units that is removed at most.
        draws: How many removals are drawn for each size.
        fill: What is put there, in photos.
        steps: Of fine-tuning, 32 samples each.
        rate: Of fine-tuning.
    """

    name: ClassVar[str] = "f_fidelity"
    title: ClassVar[str] = "F-Fidelity"
    kinds: ClassVar[tuple[str, ...]] = ("image", "text")
    main: ClassVar[str] = "Fid+"
    main_column: ClassVar[str] = "plus_probability_mean"
    judges_stored: ClassVar[bool] = True

    alpha: float = ALPHA
    beta: float = BETA
    draws: int = 5
    fill: Fill = "dataset"
    steps: int = 50
    rate: float = 3e-5
    _seed: int = field(default=0, init=False, repr=False)
    _copy: LoadedModel | None = field(default=None, init=False, repr=False)
    _copy_of: nn.Module | None = field(default=None, init=False, repr=False)
    _kept: tuple[Path, str] | None = field(default=None, init=False, repr=False)
    _color: tuple[float, ...] | None = field(default=None, init=False, repr=False)
    _quality: Quality = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse shares, chances and numbers that make no sense."""
        removal_chances(torch.ones(1), 1, self.alpha, self.beta)
        if self.draws < 1:
            raise WhenceError(f"Removals are drawn once at least, not {self.draws} times.")
        self._plan()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copy where it is in a file that other processes read."""
        left = {} if self._kept is None else {"_copy": None, "_copy_of": None}
        return self.__dict__ | left

    def _plan(self) -> FineTuning:
        return FineTuning(self.steps, self.rate, self.beta, self._seed)

    @override
    def start(self, names: Sequence[str], seed: int) -> None:
        self._seed = seed

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if loaded.generates:
            raise WhenceError(
                f"F-Fidelity is for classifiers, and '{loaded.title}' generates text; for such "
                f"models there is `whence benchmark context`."
            )
        if loaded.class_count < 2:
            raise WhenceError(
                f"The model '{loaded.title}' answers with a single number, not with probabilities "
                f"of classes that could be watched."
            )
        if kind == "text":
            TextMasker().mask(loaded, [prepare_text(loaded, first)])

    @override
    def fit(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str], folder: Path | None
    ) -> None:
        is_photo = loaded.kind == "image"
        if is_photo and self.fill == "dataset":
            self._color = measure_mean_color(loaded, dataset, names, folder)
        masker = PhotoMasker(self.fill, self._color) if is_photo else TextMasker()
        plan = self._plan()
        found = obtain_copy(plan, loaded, dataset, names, masker, self.labels, folder)
        self._copy, self._quality, self._kept = found
        self._copy_of = loaded.model

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto | PreparedText:
        return (prepare_photo if loaded.kind == "image" else prepare_text)(loaded, sample)

    def _get_copy(self, loaded: LoadedModel) -> LoadedModel:
        """The fine-tuned copy, which another process reads from its file."""
        if self._copy is None and self._kept is not None:
            found = load_copy(*self._kept, loaded)
            self._copy, self._copy_of = (found[0] if found else None), loaded.model
        if self._copy is None or self._copy_of is not loaded.model:
            raise WhenceError(
                "There is no fine-tuned copy of this model; call the protocol's fit first, as "
                "`whence benchmark` does."
            )
        return self._copy

    @override
    def compute_rows(
        self,
        loaded: LoadedModel,
        samples: Sequence[PreparedPhoto | PreparedText],
        method: MethodSpecification,
    ) -> list[Row]:
        photos = [sample for sample in samples if isinstance(sample, PreparedPhoto)]
        if photos:
            return compute_by_shape(
                photos, lambda group: self._judge(self._explain_photos(loaded, group, method))
            )
        texts = [sample for sample in samples if isinstance(sample, PreparedText)]
        return self._judge(self._explain_texts(loaded, texts, method))

    def _explain_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> _JudgedBatch:
        run = PhotoMasker(self.fill, self._color).mask(self._get_copy(loaded), photos)
        names = [one.name for one in photos]
        found = explain_batch(loaded, run.pixels, method, names=names)
        assert run.grid is not None
        units = torch.full((len(photos),), count_cells(run))
        scores = score_cells(found, run.grid)
        return _JudgedBatch(names, scores, units, found.target, run, found.multi_label)

    def _explain_texts(
        self, loaded: LoadedModel, texts: Sequence[PreparedText], method: MethodSpecification
    ) -> _JudgedBatch:
        run = TextMasker().mask(self._get_copy(loaded), texts)
        names = [one.name for one in texts]
        found = explain_batch(loaded, run.inputs, method, names=names)
        units = count_words(run)
        scores = sum_over_words(found.scores.detach(), run.words, int(units.max()))
        return _JudgedBatch(names, scores, units, found.target, run, found.multi_label)

    def _judge(self, batch: _JudgedBatch) -> list[Row]:
        """Run the copy on whole samples and without the units that are drawn: the rows."""
        removed = self._draw(batch)
        whole = torch.zeros_like(removed[:, :1])
        count, forwards = len(batch.names), removed.shape[1] + 1
        logits = run_without(
            torch.cat([whole, removed], 1).flatten(0, 1),
            batch.run,
            torch.arange(count, device=removed.device).repeat_interleave(forwards),
            chunk_size=choose_chunk_size(self._copy) if self._copy is not None else None,
        ).reshape(count, forwards, -1)
        curves = compute_curves(logits, batch.classes, multi_label=batch.multi_label)
        rows: list[Row] = [
            {"sample": name, "predicted": int(target)}
            for name, target in zip(batch.names, batch.classes.tolist(), strict=True)
        ]
        for figure, values in (
            ("accuracy", curves["accuracy"]),
            ("probability", curves["probability"]),
        ):
            sides = values[:, 1:].reshape(count, len(_SIDES), len(FRACTIONS), self.draws)
            for side, of_side in zip(_SIDES, sides.unbind(1), strict=True):
                lost = compute_fidelity(values[:, 0], of_side)
                start = f"{side}_{figure}"
                add_columns(rows, {start: lost, f"{start}_mean": lost.mean(1)})
        return rows

    def _draw(self, batch: _JudgedBatch) -> Tensor:
        """Draw removals from explanations and from the rest: (samples, sides · sizes · draws, n).

        The noise depends on the sample's name and the seed alone, so it is that of every method.
        """
        scores, units = batch.scores, batch.units.to(batch.scores.device)
        noise = torch.ones(len(scores), self.draws, scores.shape[1], dtype=torch.float64)
        for at, (name, count) in enumerate(zip(batch.names, batch.units.tolist(), strict=True)):
            random = SeededRandom(_make_seed(name, self._seed))
            noise[at, :, :count] = random.draw_uniform(self.draws, count)
        exists = torch.arange(scores.shape[1], device=scores.device) < units[:, None]
        counts = count_units(units, FRACTIONS, "nearest")
        ranks = (rank_units(scores, "highest", exists), rank_units(scores, "lowest", exists))
        sides = [
            draw_removed(
                order, of, removal_chances(of, units[:, None], self.alpha, self.beta), noise
            )
            for order, of in zip(ranks, (counts, units[:, None] - counts), strict=True)
        ]
        return torch.stack(sides, 1).flatten(1, 3)

    @override
    def list_metrics(self) -> list[Metric]:
        return [
            Metric(
                f"{title}{end}",
                (f"{side}_{figure}_mean",),
                "higher" if side == "plus" else "lower",
                factor=100,
                ranked=figure == "probability",
            )
            for figure, end in (("probability", ""), ("accuracy", ", accuracy"))
            for side, title in _SIDES.items()
        ]

    @override
    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:
        return [
            Curve(f"{title}: {figure}", f"{side}_{figure}", FRACTIONS, "size of the explanation")
            for figure in ("probability", "accuracy")
            for side, title in _SIDES.items()
        ]

    @override
    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:
        notes = [
            f"All in percent. A fine-tuned copy loses so much of the probability of the predicted "
            f"class, or so often decides for it no more (accuracy), when units (patches, words) "
            f"of the explanation (Fid+, high is better) or of the rest (Fid-, low is better) are "
            f"removed at random with a chance of {self.alpha:g}, at most {100 * self.beta:g} % of "
            f"all on average; the mean over explanations of 10, 20, … 90 % of the units and "
            f"{self.draws} draws."
        ]
        found = self._quality
        if found:
            right = {0.0: "as the model judges the whole", found["checked"]: "by the labels"}
            shares = {name: f"{100 * share:.1f} %" for name, share in found.items()}
            notes.append(
                f"The copy learned in {self.steps} step(s) to say of samples without "
                f"{100 * self.beta:g} % of their units what the model says of the whole, from "
                f"{found['learned from']:.0f} samples, {found['judged too']:.0f} of which are "
                f"judged too. Of {found['checked']:.0f} judged samples the copy is right on "
                f"{shares['copy whole']} (the model: {shares['model whole']}), without such "
                f"units on {shares['copy masked']} (the model: {shares['model masked']}), "
                f"{right.get(found['labelled'], 'by the labels where there are some')}."
            )
        return notes


def _make_seed(name: str, seed: int) -> int:
    """A seed for one sample, of its name and the run's seed."""
    text = f"{seed}\0{name}".encode("utf-8", "replace")
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
