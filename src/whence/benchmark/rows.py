"""Compute rows of a benchmark run: threads read samples while the model works."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from whence._util.text import first_line
from whence.benchmark.protocols.base import AnyProtocol, NamedSample, Row
from whence.errors import MemoryShortError, WhenceError
from whence.methods import MethodSpecification
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset

_THREADS = 4
_AHEAD = 2

BatchTask: TypeAlias = Mapping[str, list[str]]
"""One batch: the names of the samples whose rows are to be computed, by the method's label."""


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch by one method, in order.

    Attributes:
        method: The label of the method.
        rows: A row for each sample; one that failed has its error.
        problem: The first error, if samples failed and none has a figure. Then the method or the
            model may be wrong, not these samples.
    """

    method: str
    rows: list[Row]
    problem: WhenceError | None = None


@dataclass(frozen=True)
class RowComputer:
    """Computes the rows of batches; a sample that fails gets a row with the error."""

    protocol: AnyProtocol
    loaded: LoadedModel
    dataset: Dataset
    methods: Sequence[MethodSpecification]

    def compute_tasks(
        self, tasks: Sequence[BatchTask], without: Container[str] = ()
    ) -> Iterator[BatchRows]:
        """Compute tasks one by one, each of its methods in order, and read the next ones meanwhile.

        Methods whose labels are in `without`, which may grow meanwhile, are left out.

        Raises:
            MemoryShortError: The device's memory is too small for a batch.
        """
        # Each sample is read once for all methods.
        names = [list(dict.fromkeys(n for of in task.values() for n in of)) for task in tasks]
        for task, samples in zip(tasks, _read_batches(names, self.read), strict=True):
            by_name = {sample.name: sample for sample in samples}
            for method in self.methods:
                of_method = task.get(method.label)
                if of_method and method.label not in without:
                    yield self.compute([by_name[name] for name in of_method], method)

    def read(self, name: str) -> NamedSample:
        """Read and prepare a sample; this runs in threads."""
        try:
            sample: NamedSample = self.protocol.prepare(self.loaded, self.dataset.read(name))
            return sample
        except WhenceError as error:
            return _UnreadableSample(name, str(error))
        except Exception as error:  # one odd sample must not end the run
            reason = f"{type(error).__name__}: {first_line(error)}"
            return _UnreadableSample(name, f"It cannot be read: {reason}.")

    def compute(self, samples: Sequence[NamedSample], method: MethodSpecification) -> BatchRows:
        """Compute the rows of samples that `read` returned."""
        rows: dict[str, Row] = {
            one.name: {"sample": one.name, "error": one.error}
            for one in samples
            if isinstance(one, _UnreadableSample)
        }
        usable = [one for one in samples if not isinstance(one, _UnreadableSample)]
        problem: WhenceError | None = None
        if usable:
            computed, problem = self._compute_usable(usable, method)
            rows |= {row["sample"]: row for row in computed}
        return BatchRows(method.label, [rows[one.name] for one in samples], problem)

    def _compute_usable(
        self, samples: Sequence[NamedSample], method: MethodSpecification
    ) -> tuple[list[Row], WhenceError | None]:
        """Rows of samples, one by one where the batch fails; the first error if none worked.

        Rows without figures, such as those of questions that the model does not answer, tell
        nothing of the method.
        """
        try:
            return self._try(samples, method), None
        except MemoryShortError:
            raise
        except WhenceError as error:
            if len(samples) == 1:
                return [{"sample": samples[0].name, "error": str(error)}], error
        results = [self._compute_usable([one], method) for one in samples]
        rows = [row for found, _ in results for row in found]
        problem = next((problem for _, problem in results if problem is not None), None)
        return rows, None if has_figures(rows, self.protocol.list_figures()) else problem

    def _try(self, samples: Sequence[NamedSample], method: MethodSpecification) -> list[Row]:
        try:
            return self.protocol.compute_rows(self.loaded, samples, method)
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            short = "The device's memory is too small; give a smaller --batch."
            raise MemoryShortError(short) from None
        except Exception as error:  # a model may raise anything
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise WhenceError(f"Method '{method.label}' failed: {reason}.") from error


def has_figures(rows: Sequence[Row], figures: Collection[str]) -> bool:
    """Whether any row has a number in one of these columns."""
    return any(
        isinstance(value, int | float) and not math.isnan(value)
        for row in rows
        for value in map(row.get, figures)
    )


class _UnreadableSample(NamedTuple):
    """A sample that cannot be read or prepared, and why."""

    name: str
    error: str


def _read_batches(
    groups: Sequence[Sequence[str]], read: Callable[[str], NamedSample]
) -> Iterator[list[NamedSample]]:
    """Yield the samples of each group of names, while threads read the next groups."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="whence-reading") as pool:
        waiting: list[list[Future[NamedSample]]] = []
        try:
            for at in range(len(groups)):
                for group in groups[at + len(waiting) : at + _AHEAD]:
                    waiting.append([pool.submit(read, name) for name in group])
                yield [one.result() for one in waiting.pop(0)]
        finally:
            for future in (one for group in waiting for one in group):
                future.cancel()
