"""F-Fidelity benchmark: what a copy that is used to missing parts loses without some of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence._util.fingerprint import hash_texts, hash_weights
from whence._util.random import SeededRandom
from whence.benchmark.columns import Columns
from whence.benchmark.fine_tuning import (
    FineTuning,
    Quality,
    load_copy,
    measure_quality,
    save_copy,
)
from whence.benchmark.masked_samples import PhotoMasker, score_cells
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
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.metrics.curves import compute_curves
from whence.metrics.deletion import FRACTIONS, count_units, rank_units, run_without
from whence.metrics.fidelity import (
    ALPHA,
    BETA,
    compute_fidelity,
    draw_removed,
    removal_chances,
)
from whence.metrics.pixels import Fill
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size

if TYPE_CHECKING:
    from whence.datasets import Dataset, Sample

FILE = "fine_tuned.safetensors"
# As many samples that are not judged are enough to fine-tune on; with fewer, all are used.
_ENOUGH = 100
# How many samples are read to fine-tune on, and to check the copy.
_MOST, _CHECKED = 512, 128
_SIDES = {"plus": "Fid+", "minus": "Fid-"}


@dataclass
class FFidelityProtocol(BenchmarkProtocol[PreparedPhoto]):
    """A copy is fine-tuned with randomly removed patches, then patches are removed by scores.

    After Zheng et al. (ICLR 2025). For explanations of 10, 20, … 90 % of the patches, each patch
    of the explanation (Fid+) or of the rest (Fid-) is removed with the chance alpha, or less, so
    that a share beta of all is removed on average at most: that is what the copy was fine-tuned
    on. The figures are what the explained class loses, the mean over sizes and draws.

    Attributes:
        alpha: The chance with which a patch is removed.
        beta: The share of patches that is removed at most.
        draws: How many removals are drawn for each size.
        fill: What is put there.
        steps: Of fine-tuning, 32 photos each.
        rate: Of fine-tuning.
    """

    name: ClassVar[str] = "f_fidelity"
    title: ClassVar[str] = "F-Fidelity"
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    main: ClassVar[str] = "Fid+"
    main_column: ClassVar[str] = "plus_probability_mean"
    judges_stored: ClassVar[bool] = True

    alpha: float = ALPHA
    beta: float = BETA
    draws: int = 10
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

    @property
    def _masker(self) -> PhotoMasker:
        return PhotoMasker(self.fill, self._color)

    def _plan(self) -> FineTuning:
        return FineTuning(self.steps, self.rate, self.beta, self._seed)

    @override
    def start(self, names: Sequence[str], seed: int) -> None:
        self._seed = seed

    @override
    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:
        super().check(loaded, kind, first)
        if loaded.class_count < 2:
            raise WhenceError(
                f"The model '{loaded.title}' answers with a single number, not with probabilities "
                f"of classes that could be watched."
            )

    @override
    def fit(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str], folder: Path | None
    ) -> None:
        if self.fill == "dataset":
            self._color = measure_mean_color(loaded, dataset, names, folder)
        learned = self._choose_samples(dataset, names)
        options = json.dumps(self.list_options() | {"seed": self._seed}, sort_keys=True)
        fingerprint = dataset.compute_fingerprint()
        key = hash_texts(hash_weights(loaded.model), fingerprint, options, *learned, "", *names)
        path = None if folder is None else folder.absolute() / FILE
        kept = None if path is None else load_copy(path, loaded, key)
        if kept is not None:
            student, self._quality = kept
        else:
            student, self._quality = self._fine_tune(loaded, dataset, names, learned)
            if path is not None:
                save_copy(path, student, key, self._quality)
        self._copy, self._copy_of = student, loaded.model
        self._kept = None if path is None else (path, key)

    def _fine_tune(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str], learned: Sequence[str]
    ) -> tuple[LoadedModel, Quality]:
        """Fine-tune a copy on samples, and tell how good it is on judged ones."""
        read = partial(self._masker.read, loaded, dataset)
        groups = read(learned) or read(self._draw_names(names, _MOST))
        if not groups:
            raise WhenceError("No photo can be read that a copy of the model could learn from.")
        student = self._plan().run(loaded, groups)
        checked = read(self._draw_names(names, _CHECKED))
        quality = measure_quality(loaded, student, checked, self.labels, self._plan())
        used = {sample.name for group in groups for sample in group.samples}
        facts = {"learned from": float(len(used)), "judged too": float(len(used & {*names}))}
        return student, quality | facts

    def _choose_samples(self, dataset: Dataset, names: Sequence[str]) -> list[str]:
        """Choose the samples to fine-tune on: those that are not judged, if there are enough."""
        judged = set(names)
        others = [name for name in dataset.list_names() if name not in judged]
        pool = others if len(others) >= _ENOUGH else sorted({*others, *names})
        return self._draw_names(pool, _MOST)

    def _draw_names(self, names: Sequence[str], most: int) -> list[str]:
        chosen = SeededRandom(self._seed).draw_subset(min(most, len(names)), len(names))
        return [names[at] for at in chosen]

    @override
    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedPhoto:
        return prepare_photo(loaded, sample)

    def _get_copy(self, loaded: LoadedModel) -> LoadedModel:
        """The fine-tuned copy, which another process reads from its file."""
        if self._copy is None and self._kept is not None:
            found = load_copy(self._kept[0], loaded, self._kept[1])
            self._copy, self._copy_of = (found[0] if found else None), loaded.model
        if self._copy is None or self._copy_of is not loaded.model:
            raise WhenceError(
                "There is no fine-tuned copy of this model; call the protocol's fit first, as "
                "`whence benchmark` does."
            )
        return self._copy

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        return compute_by_shape(samples, lambda photos: self._compute_rows(loaded, photos, method))

    def _compute_rows(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        student = self._get_copy(loaded)
        names = [one.name for one in photos]
        run = self._masker.mask(student, photos)
        explanation = explain_batch(loaded, run.pixels, method, names=names)
        assert run.grid is not None
        removed = self._draw(score_cells(explanation, run.grid), names)
        whole = torch.zeros_like(removed[:, :1])
        rows_of = removed.shape[1] + 1
        logits = run_without(
            torch.cat([whole, removed], 1).flatten(0, 1),
            run,
            torch.arange(len(photos), device=run.pixels.device).repeat_interleave(rows_of),
            chunk_size=choose_chunk_size(student),
        ).reshape(len(photos), rows_of, -1)
        curves = compute_curves(logits, explanation.target)
        rows: list[Row] = [
            {"sample": name, "predicted": int(target)}
            for name, target in zip(names, explanation.target.tolist(), strict=True)
        ]
        for figure, values in (
            ("accuracy", curves["accuracy"]),
            ("probability", curves["probability"]),
        ):
            sides = values[:, 1:].reshape(len(photos), 2, len(FRACTIONS), self.draws)
            for side, of_side in zip(_SIDES, sides.unbind(1), strict=True):
                lost = compute_fidelity(values[:, 0], of_side)
                start = f"{side}_{figure}"
                add_columns(rows, {start: lost, f"{start}_mean": lost.mean(1)})
        return rows

    def _draw(self, scores: Tensor, names: Sequence[str]) -> Tensor:
        """Draw removals from explanations, and from the rest: (photos, sides · sizes · draws, n).

        The noise depends on the photo's name and the seed alone, so it is that of every method.
        """
        units = scores.shape[1]
        drawn = [
            SeededRandom(_seed_of(name, self._seed)).draw_uniform(self.draws, units)
            for name in names
        ]
        noise = torch.stack(drawn).to(scores.device)
        counts = count_units(units, FRACTIONS).to(scores.device)
        ranks = (rank_units(scores, "highest"), rank_units(scores, "lowest"))
        sides = [
            draw_removed(order, of, removal_chances(of, units, self.alpha, self.beta), noise)
            for order, of in zip(ranks, (counts, units - counts), strict=True)
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
            f"class, or so often decides for it no more (accuracy), when patches of the "
            f"explanation (Fid+, high is better) or of the rest (Fid-, low is better) are removed "
            f"at random with a chance of {self.alpha:g}, at most {100 * self.beta:g} % of all on "
            f"average; the mean over explanations of 10, 20, … 90 % of the patches and "
            f"{self.draws} draws."
        ]
        found = self._quality
        if found:
            right = {0.0: "as the model judges the whole photo", found["checked"]: "by the labels"}
            shares = {name: f"{100 * share:.1f} %" for name, share in found.items()}
            notes.append(
                f"The copy learned in {self.steps} steps to say of photos without "
                f"{100 * self.beta:g} % of their patches what the model says of the whole, from "
                f"{found['learned from']:.0f} photos, {found['judged too']:.0f} of which are "
                f"judged too. Of {found['checked']:.0f} judged photos the copy is right on "
                f"{shares['copy whole']} (the model: {shares['model whole']}), without such "
                f"patches on {shares['copy masked']} (the model: {shares['model masked']}), "
                f"{right.get(found['labelled'], 'by the labels where there are some')}."
            )
        return notes


def _seed_of(name: str, seed: int) -> int:
    """A seed for one sample, of its name and the run's seed."""
    text = f"{seed}\0{name}".encode("utf-8", "replace")
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
