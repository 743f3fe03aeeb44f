"""Compute the missing rows of a benchmark run: threads read samples while the model works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from whence._util.progress import bar
from whence._util.text import first_line
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.protocols.base import NamedSample, Row
from whence.errors import MemoryShortError, WhenceError
from whence.methods import MethodSpecification

_THREADS = 4
_AHEAD = 2


def compute_missing_rows(job: BenchmarkJob) -> None:
    """Compute the rows that the store lacks, and add them to it."""
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
        batches = _read_batches(to_read, computer.read)
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
        """Read and prepare a sample; this runs in threads."""
        try:
            sample: NamedSample
            sample = self.job.protocol.prepare(self.job.loaded, self.job.dataset.read(name))
            return sample
        except WhenceError as error:
            return _UnreadableSample(name, str(error))
        except Exception as error:  # one odd sample must not end the run
            reason = f"{type(error).__name__}: {first_line(error)}"
            return _UnreadableSample(name, f"It cannot be read: {reason}.")

    def compute(self, samples: Sequence[NamedSample], method: MethodSpecification) -> list[Row]:
        """Rows of a batch, in order."""
        rows: dict[str, Row] = {
            one.name: {"sample": one.name, "error": one.error}
            for one in samples
            if isinstance(one, _UnreadableSample)
        }
        usable = [one for one in samples if not isinstance(one, _UnreadableSample)]
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
            short = "The device's memory is too small; give a smaller --batch."
            raise MemoryShortError(short) from None
        except Exception as error:  # a model may raise anything
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise WhenceError(f"Method '{method.label}' failed: {reason}.") from error


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
