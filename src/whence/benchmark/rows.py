"""Compute the missing rows of a benchmark run, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from whence._util.progress import bar
from whence._util.text import first_line
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.protocols.base import NamedSample, Row
from whence.benchmark.reading import UnreadableSample, read_batches
from whence.errors import MemoryShortError, WhenceError
from whence.methods import MethodSpecification


def compute_missing_rows(job: BenchmarkJob) -> None:
    """Compute the rows that the store lacks, and add them to it.

    Raises:
        WhenceError: A method fails on all samples, memory is too small, or rows cannot be written.
    """
    computer = _RowComputer(job)
    groups = [job.names[at : at + job.batch] for at in range(0, len(job.names), job.batch)]
    missing = [
        {m.label: [n for n in group if n not in job.store.list_done(m.label)] for m in job.methods}
        for group in groups
    ]
    missing = [by_method for by_method in missing if any(by_method.values())]
    total = sum(len(names) for by_method in missing for names in by_method.values())
    # Each sample is read once for all methods.
    to_read = [list(dict.fromkeys(n for names in m.values() for n in names)) for m in missing]
    with bar(f"Benchmark: {job.protocol.name}", total) as advance:
        batches = read_batches(to_read, computer.read)
        for by_method, samples in zip(missing, batches, strict=True):
            by_name = {sample.name: sample for sample in samples}
            for method in job.methods:
                names = by_method[method.label]
                if names:
                    rows = computer.compute([by_name[name] for name in names], method)
                    job.store.add(method.label, rows)
                    advance(len(names))


class _RowComputer:
    """Computes rows of batches; a sample that fails gets a row with the error."""

    def __init__(self, job: BenchmarkJob) -> None:
        self.job = job
        self.working = {m.label for m in job.methods if job.store.has_results(m.label)}

    def read(self, name: str) -> NamedSample:
        prepared: NamedSample = self.job.protocol.prepare(
            self.job.loaded, self.job.dataset.read(name)
        )
        return prepared

    def compute(self, samples: Sequence[NamedSample], method: MethodSpecification) -> list[Row]:
        """Rows of a batch, in order."""
        rows: dict[str, Row] = {
            one.name: {"sample": one.name, "error": one.error}
            for one in samples
            if isinstance(one, UnreadableSample)
        }
        usable = [one for one in samples if not isinstance(one, UnreadableSample)]
        if usable:
            rows |= {row["sample"]: row for row in self._compute_usable(usable, method)}
        return [rows[one.name] for one in samples]

    def _compute_usable(
        self, samples: Sequence[NamedSample], method: MethodSpecification
    ) -> list[Row]:
        """Rows of samples; one by one where the batch fails."""
        try:
            rows = self._try(samples, method)
        except MemoryShortError:
            raise
        except WhenceError as error:
            if len(samples) == 1:
                if method.label not in self.working:
                    # Nothing is known to work: the model or the request is wrong, not this sample.
                    raise
                return [{"sample": samples[0].name, "error": str(error)}]
            problems: list[WhenceError] = []
            rows = []
            for one in samples:
                try:
                    rows += self._try([one], method)
                except WhenceError as problem:
                    problems.append(problem)
                    rows.append({"sample": one.name, "error": str(problem)})
            if len(problems) == len(samples) and method.label not in self.working:
                raise problems[0] from None
        self.working.add(method.label)
        return rows

    def _try(self, samples: Sequence[NamedSample], method: MethodSpecification) -> list[Row]:
        try:
            return self.job.protocol.compute_rows(self.job.loaded, samples, method)
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            raise MemoryShortError(
                "The device's memory is too small; give a smaller --batch."
            ) from None
        except Exception as error:  # a model may raise anything
            raise WhenceError(
                f"Method '{method.label}' failed: {type(error).__name__}: {first_line(error)}."
            ) from error
