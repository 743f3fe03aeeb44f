"""Fine-tune a copy of a model on inputs with randomly removed units, and keep it in a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from whence._util.chunks import run_in_chunks
from whence._util.files import is_file, write_atomically
from whence._util.fingerprint import hash_texts, hash_weights
from whence._util.progress import bar
from whence._util.random import SeededRandom
from whence.benchmark.labels import LabelMapping
from whence.benchmark.masked_samples import MaskedSamples, Masker
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, compute_logits
from whence.tracing import find_logits

if TYPE_CHECKING:
    from whence.datasets import Dataset

FILE = "fine_tuned.safetensors"
# As many samples that are not judged are enough to fine-tune on; with fewer, all are used.
_ENOUGH = 100
# How many samples are read to fine-tune on, and to check the copy.
_MOST, _CHECKED = 512, 128

Quality: TypeAlias = dict[str, float]
"""Figures of a copy and of the model it was made of, by name."""


class KeptCopy(NamedTuple):
    """A fine-tuned copy, and the file that it is kept in with its key; None if it is nowhere."""

    student: LoadedModel
    quality: Quality
    place: tuple[Path, str] | None


@dataclass(frozen=True)
class FineTuning:
    """How a copy of a model is fine-tuned: AdamW, in evaluation mode, so without dropout.

    In each step a batch of inputs is drawn, of each of which a share `beta` of the units, rounded
    down but one at least, is removed at random. The loss is the cross-entropy with what the model
    itself predicts for the whole inputs: no labels are needed, and the copy learns to decide as the
    model does.
    """

    steps: int
    rate: float
    beta: float
    seed: int
    batch: int = 32

    def __post_init__(self) -> None:
        """Refuse numbers that fine-tune nothing."""
        if self.steps < 0 or not 0 < self.rate <= 1:
            raise WhenceError(
                f"Fine-tuning takes 0 steps or more and a rate above 0, 1 at most, not "
                f"{self.steps} and {self.rate:g}."
            )

    def run(self, loaded: LoadedModel, groups: Sequence[MaskedSamples]) -> LoadedModel:
        """Fine-tune a copy on groups of inputs that can be run together; the model is left alone.

        Raises:
            WhenceError: The copy no longer gives numbers.
        """
        student = copy_model(loaded)
        weights = [p for p in student.model.parameters() if p.is_floating_point()]
        for weight in weights:
            weight.requires_grad_()
        optimizer = torch.optim.AdamW(weights, lr=self.rate, weight_decay=1e-4)
        truth = [predict(loaded, group) for group in groups]
        sizes = torch.tensor([len(group.units) for group in groups])
        starts = sizes.cumsum(0) - sizes
        random, everything = SeededRandom(self.seed), int(sizes.sum())
        with bar("Fine-tuning a copy of the model", self.steps) as advance, torch.enable_grad():
            for _ in range(self.steps):
                drawn = torch.tensor(random.draw_integers(everything, self.batch))
                for group, targets, start, size in zip(groups, truth, starts, sizes, strict=True):
                    rows = drawn[(drawn >= start) & (drawn < start + size)] - start
                    if len(rows):
                        deleted = draw_deleted(group.units[rows], self.beta, random)
                        self._learn(student, group, rows, deleted, targets)
                optimizer.step()
                optimizer.zero_grad()
                advance(1)
        if any(not weight.isfinite().all() for weight in weights):
            raise WhenceError(
                f"Fine-tuning made the copy of '{loaded.title}' useless; give a smaller rate."
            )
        student.model.requires_grad_(False)
        return student

    def _learn(
        self,
        student: LoadedModel,
        group: MaskedSamples,
        rows: Tensor,
        deleted: Tensor,
        truth: Tensor,
    ) -> None:
        """Add the gradients of one group's share of a batch."""
        device = student.device
        logits = find_logits(student.run(group.delete(deleted.to(device), rows.to(device))))
        expected = truth[rows.to(device)].softmax(1)
        loss = nn.functional.cross_entropy(logits.float(), expected, reduction="sum")
        torch.autograd.backward(loss / self.batch)


def copy_model(loaded: LoadedModel) -> LoadedModel:
    """Copy a model, in single precision and without compiling, to change its weights."""
    model = copy.deepcopy(loaded.model).float().eval().requires_grad_(False)
    return replace(loaded, model=model, compile=False, precision=None)


def draw_deleted(units: Tensor, share: float, random: SeededRandom) -> Tensor:
    """Draw a share of each row's units, rounded down but one at least: (rows, longest)."""
    noise = random.draw_uniform(len(units), int(units.max()))
    places = torch.arange(noise.shape[1])
    noise = noise.masked_fill(places >= units[:, None], 2.0)
    ranks = noise.argsort(1).argsort(1)
    counts = torch.minimum((share * units.double() + 1e-9).floor().clamp(min=1), units)
    return ranks < counts[:, None]


def predict(loaded: LoadedModel, group: MaskedSamples, deleted: Tensor | None = None) -> Tensor:
    """Compute the logits (inputs, classes) of a group, without the deleted units."""
    device = torch.device(loaded.device)
    if deleted is None:
        deleted = torch.zeros(len(group.units), int(group.units.max()), dtype=torch.bool)

    def work(chunk: range) -> Tensor:
        rows = torch.arange(chunk.start, chunk.stop)
        inputs = group.delete(deleted[rows].to(device), rows.to(device))
        return compute_logits(loaded, inputs).float()

    return run_in_chunks(len(group.units), choose_chunk_size(loaded), work)


def measure_quality(
    loaded: LoadedModel,
    student: LoadedModel,
    groups: Sequence[MaskedSamples],
    labels: LabelMapping,
    plan: FineTuning,
) -> Quality:
    """Measure how often a model and its copy are right, on whole samples and without some units.

    Right is the label, or, where a sample has none, what the model says of it when it is whole.

    Returns:
        Shares, "model whole", "model masked", "copy whole" and "copy masked"; and how many samples
        were "checked" and "labelled".
    """
    random, labelled = SeededRandom(plan.seed + 1), 0
    hits = dict.fromkeys(("model whole", "model masked", "copy whole", "copy masked"), 0.0)
    for group in groups:
        truth = predict(loaded, group).argmax(1)
        for at, sample in enumerate(group.samples):
            with suppress(WhenceError):  # a label that is no class of the model counts as none
                label = labels.find_index(loaded, sample)
                if label is not None:
                    truth[at] = label
                    labelled += 1
        deleted = draw_deleted(group.units, plan.beta, random)
        for who, judge in (("model", loaded), ("copy", student)):
            for how, gone in (("whole", None), ("masked", deleted)):
                right = predict(judge, group, gone).argmax(1) == truth
                hits[f"{who} {how}"] += float(right.sum())
    count = sum(len(group.samples) for group in groups)
    shares = {name: of / max(count, 1) for name, of in hits.items()}
    return shares | {"checked": float(count), "labelled": float(labelled)}


def obtain_copy(
    plan: FineTuning,
    loaded: LoadedModel,
    dataset: Dataset,
    names: Sequence[str],
    masker: Masker,
    labels: LabelMapping,
    folder: Path | None,
) -> KeptCopy:
    """Read the fine-tuned copy of a model from a folder, or make it and keep it there.

    Args:
        plan: How it is fine-tuned.
        loaded: The model.
        dataset: Where the samples come from: those that are not judged, if there are enough.
        names: The samples that are judged.
        masker: Reads samples and removes their units.
        labels: What the dataset's labels mean.
        folder: Where it is kept; None for nowhere.

    Raises:
        WhenceError: No sample can be read.
    """
    learned = choose_samples(dataset, names, plan.seed)
    facts = (repr(plan), repr(masker), dataset.compute_fingerprint(), hash_weights(loaded.model))
    key = hash_texts(*facts, *learned, "", *names)
    place = None if folder is None else (folder.absolute() / FILE, key)
    if place is not None and (kept := load_copy(*place, loaded)) is not None:
        return KeptCopy(*kept, place)
    groups = masker.read(loaded, dataset, learned) or masker.read(loaded, dataset, names[:_MOST])
    if not groups:
        raise WhenceError("No sample can be read that a copy of the model could learn from.")
    student = plan.run(loaded, groups)
    checked = masker.read(loaded, dataset, _draw_names(names, _CHECKED, plan.seed))
    quality = measure_quality(loaded, student, checked, labels, plan)
    used = {sample.name for group in groups for sample in group.samples}
    quality |= {"learned from": float(len(used)), "judged too": float(len(used & {*names}))}
    if place is not None:
        save_copy(*place, student, quality)
    return KeptCopy(student, quality, place)


def choose_samples(dataset: Dataset, names: Sequence[str], seed: int) -> list[str]:
    """Choose the samples to fine-tune on: those that are not judged, if there are enough."""
    judged = set(names)
    others = [name for name in dataset.list_names() if name not in judged]
    pool = others if len(others) >= _ENOUGH else sorted({*others, *names})
    return _draw_names(pool, _MOST, seed)


def _draw_names(names: Sequence[str], most: int, seed: int) -> list[str]:
    chosen = SeededRandom(seed).draw_subset(min(most, len(names)), len(names))
    return [names[at] for at in chosen]


def save_copy(path: Path, key: str, student: LoadedModel, quality: Quality) -> None:
    """Write the weights of a copy, whole or not at all, with what it was made of.

    Buffers are those of the model, and weights that two modules share are written once.
    """
    weights = {
        name: value.detach().cpu().contiguous() for name, value in student.model.named_parameters()
    }
    metadata = {"of": key, "quality": json.dumps(quality)}
    write_atomically(path, safetensors.torch.save(weights, metadata))


def load_copy(path: Path, key: str, loaded: LoadedModel) -> tuple[LoadedModel, Quality] | None:
    """Read a copy of a model; None if there is none of that key, or the file is damaged."""
    if not is_file(path):
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("of") != key:
                return None
            quality = {k: float(v) for k, v in json.loads(metadata["quality"]).items()}
            student = copy_model(loaded)
            with torch.no_grad():
                for name, parameter in student.model.named_parameters():
                    parameter.copy_(file.get_tensor(name))
    except (OSError, ValueError, LookupError, RuntimeError, safetensors.SafetensorError):
        return None
    return student, quality
