"""Fine-tune a copy of a model on inputs with randomly removed units, and keep it in a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from whence._util.chunks import run_in_chunks
from whence._util.files import is_file, write_atomically
from whence._util.progress import bar
from whence._util.random import SeededRandom
from whence.benchmark.labels import LabelMapping
from whence.benchmark.masked_samples import MaskedSamples
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, compute_logits
from whence.tracing import find_logits

Quality: TypeAlias = dict[str, float]
"""Figures of a copy and of the model it was made of, by name."""


@dataclass(frozen=True)
class FineTuning:
    """How a copy of a model is fine-tuned: AdamW, in evaluation mode, so without dropout.

    In each step a batch of inputs is drawn, of each of which a share `beta` of the units, rounded
    down, is removed at random. The loss is the cross-entropy with what the model itself predicts
    for the whole inputs: no labels are needed, and the copy learns to decide as the model does.
    """

    steps: int
    rate: float
    beta: float
    seed: int
    batch: int = 32

    def __post_init__(self) -> None:
        """Refuse numbers that fine-tune nothing."""
        if self.steps < 0 or self.rate <= 0:
            raise WhenceError(
                f"Fine-tuning takes 0 steps or more and a rate above 0, not {self.steps} and "
                f"{self.rate:g}."
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
    """Draw the units to remove, a share of each row's units rounded down: (rows, longest)."""
    noise = random.draw_uniform(len(units), int(units.max()))
    places = torch.arange(noise.shape[1])
    noise = noise.masked_fill(places >= units[:, None], 2.0)
    ranks = noise.argsort(1).argsort(1)
    return ranks < (share * units.double() + 1e-9).floor()[:, None]


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


def save_copy(path: Path, student: LoadedModel, key: str, quality: Quality) -> None:
    """Write the weights of a copy, whole or not at all, with what it was made of.

    Buffers are those of the model, and weights that two modules share are written once.
    """
    weights = {
        name: value.detach().cpu().contiguous() for name, value in student.model.named_parameters()
    }
    metadata = {"of": key, "quality": json.dumps(quality)}
    write_atomically(path, safetensors.torch.save(weights, metadata))


def load_copy(path: Path, loaded: LoadedModel, key: str) -> tuple[LoadedModel, Quality] | None:
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
