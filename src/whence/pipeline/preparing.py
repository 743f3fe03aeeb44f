"""Read and prepare photos in other processes, while this one explains those before them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from whence.models import PreparedBatch
from whence.models.image_preprocessing import CenterCropPreprocessor, ProbedPreprocessor
from whence.pipeline.reading import Failure, Preprocessor, Readable, prepare_input, read_input
from whence.pipeline.stored_photos import StoredBatch
from whence.pipeline.workers import Workers, pack

# Photos of one job. With fewer, sending jobs takes long; with more, a batch takes long to come.
_PER_JOB = 4

# The module that imports what processes need to prepare photos.
PROCESSORS = "whence.pipeline.processors"

Prepared = Callable[[], list[PreparedBatch | Failure]]
"""Waits for photos that are being prepared."""


@dataclass(frozen=True)
class PrepareJob:
    """Photos that a process prepares."""

    photos: Sequence[Readable]
    preprocessor: bytes  # packed: a process unpacks it once for all jobs
    folder: Path  # where files of prepared photos go


class PhotoPreparer:
    """Processes that read and prepare photos, which they hand over in files.

    Args:
        count: How many processes there are.
    """

    def __init__(self, count: int) -> None:
        self._folder = TemporaryDirectory(prefix="whence-", ignore_cleanup_errors=True)
        self._workers = Workers(prepare_photos, count, ahead=0, get_ready=_import_processors)

    def close(self) -> None:
        """End the processes, and remove the files of photos."""
        self._workers.finish()
        self._folder.cleanup()

    def bind(self, preprocessor: Preprocessor) -> Callable[[Sequence[Readable]], Prepared] | None:
        """A function that begins to prepare photos; None if processes cannot, or without gain."""
        if not isinstance(preprocessor, CenterCropPreprocessor | ProbedPreprocessor):
            return None  # it may hold a model
        try:
            return partial(self._start, preprocessor, pack(preprocessor))
        except Exception:  # a transform of the user's may hold anything
            return None

    def _start(
        self, preprocessor: Preprocessor, packed: bytes, photos: Sequence[Readable]
    ) -> Prepared:
        tasks = []
        for at in range(0, len(photos), _PER_JOB):
            part = photos[at : at + _PER_JOB]
            job = PrepareJob(part, packed, Path(self._folder.name))
            tasks.append(self._workers.submit(job, partial(_prepare, part, preprocessor)))
        return lambda: [
            one.open() if isinstance(one, StoredBatch) else one
            for task in tasks
            for one in task.result()
        ]


def prepare_photos(job: PrepareJob) -> list[StoredBatch | PreparedBatch | Failure]:
    """Read and prepare photos, and store them in files."""
    return [
        StoredBatch.write(one, job.folder) if isinstance(one, PreparedBatch) else one
        for one in _prepare(job.photos, _unpack(job.preprocessor))
    ]


def _import_processors() -> None:
    import_module(PROCESSORS)


def _prepare(
    photos: Sequence[Readable], preprocessor: Preprocessor
) -> list[StoredBatch | PreparedBatch | Failure]:
    return [prepare_input(read_input(one), preprocessor) for one in photos]


@lru_cache(maxsize=1)
def _unpack(preprocessor: bytes) -> Preprocessor:
    """Unpack what came with a job, through the pipe from the first process, never from a file."""
    unpacked: Preprocessor = pickle.loads(preprocessor)
    return unpacked
