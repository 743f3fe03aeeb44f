"""Compute the rows that a benchmark run still lacks, and add them to its store as they come."""

from __future__ import annotations

from whence._util.progress import bar
from whence.benchmark.job import BenchmarkJob
from whence.benchmark.rows import BatchRows, BatchTask, RowComputer, has_figures


def compute_missing_rows(job: BenchmarkJob, title: str) -> None:
    """Compute the rows that the store lacks, and add them to it; a bar shows the title."""
    tasks = list_missing_tasks(job)
    collector = RowCollector(job)
    computer = RowComputer(job.protocol, job.loaded, job.dataset, job.methods)
    with bar(title, count_rows(tasks)) as advance:
        for batch in computer.compute_tasks(tasks, job.failed):
            collector.add(batch)
            advance(len(batch.rows))


class RowCollector:
    """Adds the rows of batches to the store; refuses those of a method that never worked."""

    def __init__(self, job: BenchmarkJob) -> None:
        self._job = job
        self._store = job.store
        self._figures = job.protocol.list_figures()
        self._working = {
            one.label for one in job.methods if job.store.has_results(one.label, self._figures)
        }

    def is_working(self, method: str) -> bool:
        """Whether any batch of a method, perhaps of an earlier run, has a result."""
        return method in self._working

    def add(self, batch: BatchRows) -> None:
        """Add the rows of a batch.

        Raises:
            WhenceError: All its samples failed and nothing is known to work: the model or the
                request is wrong, not the samples. A job that goes on without such methods notes
                them instead.
        """
        if batch.method in self._job.failed:
            return
        if has_figures(batch.rows, self._figures):
            self._working.add(batch.method)
        if batch.problem is not None and batch.method not in self._working:
            if not self._job.drops_methods:
                raise batch.problem
            self._job.failed[batch.method] = str(batch.problem)
            return
        self._store.add(batch.method, batch.rows)


def list_missing_tasks(job: BenchmarkJob) -> list[BatchTask]:
    """List the batches of which a method lacks rows, in the order of the samples."""
    groups = [job.names[at : at + job.batch] for at in range(0, len(job.names), job.batch)]
    done = {method.label: job.store.list_done(method.label) for method in job.methods}
    tasks: list[BatchTask] = [
        {label: [name for name in group if name not in of] for label, of in done.items()}
        for group in groups
    ]
    return [task for task in tasks if any(task.values())]


def count_rows(tasks: list[BatchTask]) -> int:
    """Count the rows that tasks are to give."""
    return sum(len(names) for task in tasks for names in task.values())
