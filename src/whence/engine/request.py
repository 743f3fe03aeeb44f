"""Request: a model, a batch, and what is to be explained by which method. Result: its scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from whence.engine.targets import make_context
from whence.errors import WhenceError
from whence.evidence.sample_rows import SampleRows
from whence.explanation import KeptEvidence
from whence.inputs.arguments import ArgumentKey, ModelArguments
from whence.layout import FoundLayout, Layout, Tokens, find_tokens
from whence.layout.spelling import TextTokenizer
from whence.methods import Method
from whence.rules import RuleSet
from whence.rules.attnlrp import ATTNLRP
from whence.rules.balanced import BALANCED
from whence.targets import AskedClasses, AskedScalars, Readout, TargetArea
from whence.tracing import StandIns, unwrap_model

_Item = TypeVar("_Item")
# Gibibytes that passes may take on a CPU if the user names no bound.
_ON_A_CPU = 2.0
# Gibibytes that a recorded pass may keep at most, then: more would not make it faster.
_KEPT_AT_ONCE = 5.5

ImageSizes: TypeAlias = list[list[tuple[int, int]]]
"""For each sample, height and width of each of its images."""

# Rules that read of operations what their gradients read; None for plain gradients.
_BY_GRADIENT = (None, BALANCED, ATTNLRP)


@dataclass(frozen=True)
class Subject:
    """A model, and what the user says of it.

    Attributes:
        model: The model.
        class_names: Names of its classes, by index.
        tokenizer: To know tokens and words when inputs are plain ids.
        layout: What cannot be found from the model.
        output: Gets the logits from what the model returns, if it is not obvious.
        names_stated: Whether it was the user who named the classes.
        rows: Finds which arguments hold one row for each sample.
        layouts: The layouts that were found, by the kind of inputs.
        stand_ins: What is run in place of the model.
    """

    model: nn.Module
    class_names: Mapping[int, str]
    tokenizer: TextTokenizer | None
    layout: Layout
    output: Callable[[Any], Tensor] | None
    names_stated: bool = False
    rows: SampleRows = dataclasses.field(default_factory=SampleRows, compare=False)
    layouts: dict[Hashable, FoundLayout] = field(default_factory=dict, repr=False, compare=False)
    stand_ins: StandIns = field(default_factory=StandIns, repr=False, compare=False)

    @property
    def multi_label(self) -> bool:
        """Whether several classes can hold at once."""
        model = unwrap_model(self.model)
        if hasattr(model, "logit_bias") and hasattr(model, "logit_scale"):
            return True  # SigLIP: each pair of image and text has a probability of its own
        problem = getattr(getattr(model, "config", None), "problem_type", None)
        return bool(problem == "multi_label_classification")


@dataclass(frozen=True)
class Request:
    """What `Explainer.explain` was asked for, of a batch or a chunk of it.

    Attributes:
        subject: The model.
        arguments: What it is called with.
        method: The method.
        method_name: What the user called it.
        rules: The rules for relevance.
        asked: What is explained of the model's output.
        keep_evidence: Whether evidence is returned, too.
        max_bytes: How many bytes a forward pass may keep for the backward pass.
        memory: Gibibytes that the user named, if any.
        tokens: The tokens of a text, where they are known.
        verify: Whether to measure all checks, also dear ones.
        image_sizes: Of the whole batch, height and width of each image of each sample; None where
            a sample is one image.
    """

    subject: Subject
    arguments: ModelArguments
    method: Method
    method_name: str
    rules: RuleSet
    asked: AskedClasses | AskedScalars
    keep_evidence: bool
    max_bytes: float
    memory: float | None
    tokens: Tokens | None = None
    verify: bool = False
    image_sizes: ImageSizes | None = None

    @property
    def batch(self) -> int:
        """Number of samples."""
        return len(self.arguments.main)

    @cached_property
    def readout(self) -> Readout | None:
        """Reads targets in what the model returns; None for the classes of a classifier."""
        if isinstance(self.asked, AskedClasses):
            return None
        return self.asked.make_readout(make_context(self))

    @property
    def rules_used(self) -> list[RuleSet | None]:
        """How values pass operations backward for this request; None for plain gradients."""
        propagates = self.method.propagates or self.keep_evidence
        return [self.method.gradient_rules, *([self.rules] if propagates else [])]

    @property
    def reads_gradients_alone(self) -> bool:
        """Whether nothing is read of operations but what their gradients read.

        That is known of whence's own rules; those of users may read whatever operations keep.
        """
        return all(any(one is known for known in _BY_GRADIENT) for one in self.rules_used)

    @property
    def output(self) -> Callable[[Any], Tensor] | None:
        """Gets what is explained from what the model returns, one row for each sample."""
        return self.readout or self.subject.output

    @cached_property
    def special(self) -> Tensor | None:
        """(batch, tokens), true where a token belongs to no word; None if words are not known."""
        if self.tokens is None:
            return None
        rows = [[word is None for word in row] for row in self.tokens.words]
        return torch.tensor(rows, device=self.arguments.main.device)

    def name_columns(self, columns: str | None, count: int) -> Mapping[int, str]:
        """Names of the columns of the logits: of classes, the texts, or "image 0", "image 1", ….

        Args:
            columns: What the columns stand for; None for classes.
            count: How many there are.
        """
        if columns is None:
            return self.subject.class_names
        if columns == "text":
            if self.subject.names_stated:
                return self.subject.class_names
            if len(self._texts) == count:
                return self._texts
        return {index: f"{columns} {index}" for index in range(count)}

    @cached_property
    def _texts(self) -> dict[int, str]:
        """The texts that go into the model as they are written; none without a tokenizer."""
        ids, tokenizer = self.arguments.kwargs.get("input_ids"), self.subject.tokenizer
        if tokenizer is None or not isinstance(ids, Tensor) or ids.dim() != 2:
            return {}
        tokens = find_tokens(self.arguments.kwargs, ids, tokenizer)
        written = [] if tokens is None else tokens.contents or []
        return {n: text.strip() or f"text {n}" for n, text in enumerate(written)}

    def focus(self, name: ArgumentKey) -> Request:
        """The same request for one of the explained inputs, whose rows are then the batch."""
        if not self.arguments.others_at:
            return self
        focused = dataclasses.replace(self, arguments=self.arguments.focus(name), tokens=None)
        focused = focused.with_tokens()
        # The forward pass was read once, for all of the inputs.
        focused.__dict__["readout"] = self.readout
        return focused

    def with_tokens(self) -> Request:
        """The same request, with the tokens of a text."""
        main = self.arguments.main
        if main.dim() == 4:
            return self
        tokens = find_tokens(self.arguments.kwargs, main, self.subject.tokenizer)
        return dataclasses.replace(self, tokens=tokens)

    def make_cuttable(self) -> Request | None:
        """The same request, of which samples can be selected; None if that is not proven."""
        if self.arguments.per_sample is not None:
            return self
        subject, explained = self.subject, self.arguments.explained_names
        output = subject.output if self.readout is None else self.readout.find_whole
        found = subject.rows.find(subject.model, self.arguments, output, explained)
        return None if found is None else dataclasses.replace(self, arguments=found)

    def select_rows(self, rows: slice) -> Request:
        """The same request for some of the samples."""
        if rows == slice(0, self.batch):
            return self
        return dataclasses.replace(
            self,
            arguments=self.arguments.select_rows(rows),
            asked=self.asked.select_samples(rows, self.batch),
            tokens=None if self.tokens is None else self.tokens.select_samples(rows),
        )


def check_memory(memory: object) -> None:
    """Refuse what is no amount of memory.

    Raises:
        WhenceError: It is none.
    """
    number = isinstance(memory, int | float) and not isinstance(memory, bool)
    if memory is not None and not (number and 0 < memory < math.inf):  # type: ignore[operator]
        raise WhenceError(f"memory is a number of gibibytes above 0, such as 0.5, not {memory!r}.")


def bound_kept_bytes(device: torch.device, memory: float | None) -> float:
    """What one recorded forward pass may keep, if the user names so many gibibytes or none."""
    if memory is not None:
        return memory * 2**30
    # A power of two, so that it is mostly the same from call to call while free memory varies.
    return min(2.0 ** math.floor(math.log2(_count_free(device))), _KEPT_AT_ONCE) * 2**30


def bound_forwards_bytes(device: torch.device, memory: float | None) -> float:
    """What methods of many forward passes may take for them, as memory is now."""
    return (_count_free(device) if memory is None else memory) * 2**30


def _count_free(device: torch.device) -> float:
    """Gibibytes that may be taken: half of a GPU's free memory, or 2 on a CPU."""
    if device.type != "cuda":
        return _ON_A_CPU
    free: int = torch.cuda.mem_get_info(device)[0]
    return free / 2 / 2**30


class Result(NamedTuple):
    """What is computed of some samples.

    Attributes:
        scores: (samples, targets, units).
        classes: (samples, targets), the explained classes or tokens, by index.
        logits: (samples, all classes).
        layout: Which part of the input each token stands for.
        tokens: The tokens of a text.
        columns: What the columns of the logits stand for, if it is no classes.
        target_names: Names of what is explained, for each sample and target; None for classes.
        areas: Where in the picture targets lie, for each sample and target; None if nowhere.
        probabilities: (samples, targets), of what is explained, NaN where there is none; None for
            classes, whose logits tell.
        values: (samples, targets), the explained scalars.
        details: What the method has to tell beside its scores, for each sample and target.
        evidence: What the method worked with, if it is kept.
        sample_bytes: How much memory the backward pass of one sample takes; 0 if that is not known.
        figures: For each check, (samples,), how far it is from being passed.
        others: The results of further explained inputs, in their order.
    """

    scores: Tensor
    classes: Tensor
    logits: Tensor
    layout: FoundLayout
    tokens: Tokens | None = None
    columns: str | None = None
    target_names: list[list[str]] | None = None
    areas: list[list[TargetArea | None]] | None = None
    probabilities: Tensor | None = None
    values: Tensor | None = None
    details: list[list[dict[str, Any]]] = []
    evidence: KeptEvidence | None = None
    sample_bytes: float = 0.0
    figures: Mapping[str, Tensor] = {}
    others: tuple[Result, ...] = ()

    def select_last(self, samples: int) -> Result:
        """The result of the last samples alone."""
        if samples == len(self.scores):
            return self
        rows = slice(len(self.scores) - samples, len(self.scores))
        return self._replace(
            scores=self.scores[rows],
            classes=self.classes[rows],
            logits=self.logits[rows],
            target_names=None if self.target_names is None else self.target_names[rows],
            areas=None if self.areas is None else self.areas[rows],
            probabilities=None if self.probabilities is None else self.probabilities[rows],
            values=None if self.values is None else self.values[rows],
            tokens=None if self.tokens is None else self.tokens.select_samples(rows),
            details=self.details[rows],
            figures={name: values[rows] for name, values in self.figures.items()},
            others=tuple(other.select_last(samples) for other in self.others),
        )

    @classmethod
    def concatenate(cls, results: Sequence[Result]) -> Result:
        """The results of several chunks, none of which has evidence, as one."""
        if len(results) == 1:
            return results[0]
        tokens = [result.tokens for result in results if result.tokens is not None]
        return results[0]._replace(
            scores=torch.cat([result.scores for result in results]),
            classes=torch.cat([result.classes for result in results]),
            logits=torch.cat([result.logits for result in results]),
            target_names=_concatenate_rows(result.target_names for result in results),
            areas=_concatenate_rows(result.areas for result in results),
            probabilities=_concatenate(result.probabilities for result in results),
            values=_concatenate(result.values for result in results),
            tokens=Tokens.concatenate(tokens) if tokens else None,
            details=[one for result in results for one in result.details],
            figures={
                name: torch.cat([r.figures[name] for r in results if name in r.figures])
                for name in results[0].figures
            },
            others=tuple(map(cls.concatenate, zip(*(r.others for r in results), strict=True))),
        )


def _concatenate(tensors: Iterable[Tensor | None]) -> Tensor | None:
    known = [one for one in tensors if one is not None]
    return torch.cat(known) if known else None


def _concatenate_rows(lists: Iterable[list[list[_Item]] | None]) -> list[list[_Item]] | None:
    known = [one for one in lists if one is not None]
    return [row for rows in known for row in rows] if known else None
