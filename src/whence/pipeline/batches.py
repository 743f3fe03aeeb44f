"""Read, prepare and explain inputs a batch at a time, each kind of input with its model."""

from __future__ import annotations

import dataclasses
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from whence._util.cpus import count_cpus
from whence._util.text import first_line
from whence.errors import WhenceError, WhenceWarning
from whence.explanation import Explanation
from whence.inputs.sources import NOUNS, Kind, Source
from whence.methods.registry import MethodSpecification
from whence.models import LoadedModel, PreparedBatch
from whence.models.loaded import select_sample
from whence.models.text_preprocessing import join_batches
from whence.pipeline.reading import Failure, Readable, prepare_input, read_input
from whence.pipeline.settings import ExplainSettings

if TYPE_CHECKING:
    from whence.pipeline.preparing import PhotoPreparer, Prepared

Found = TypeVar("Found")

# Further warnings of a run are not shown.
_MAX_WARNINGS = 100
# With fewer photos, threads and processes take longer to start than they save.
MANY = 48
# More would only wait: these prepare some hundred photos a second.
_MAX_THREADS = 4
# About so many photos are prepared by other processes before they are explained.
_PREPARED_AHEAD = 64
_SHORT_MEMORY = "The device's memory is too small; give a smaller --batch or --memory."


@dataclass(frozen=True)
class ExplainedInput:
    """The explanations of one input by the methods' labels, or its error."""

    index: int  # which of the inputs it is, counted from 0
    loaded: LoadedModel
    explanations: dict[str, Explanation] = field(default_factory=dict)
    part: PreparedBatch | None = None  # a batch of one, wherever it is; None if it failed
    error: str | None = None

    @cached_property
    def prepared(self) -> PreparedBatch | None:
        """The input as a batch of one on the model's device; None if it failed."""
        return None if self.part is None else self.loaded.move(self.part)


@dataclass(frozen=True)
class ExplainedBatch:
    """Explanations of several inputs at once, by the methods' labels."""

    indices: list[int]  # which of the inputs they are, counted from 0
    loaded: LoadedModel
    explanations: dict[str, Explanation]
    prepared: PreparedBatch  # all of them, on the model's device
    parts: list[PreparedBatch]  # each of them, as it was prepared

    def move_to_cpu(self) -> ExplainedBatch:
        """The same batch with explanations that are on the CPU: moved at once, not one by one."""
        moved = {label: _move_to_cpu(one) for label, one in self.explanations.items()}
        return dataclasses.replace(self, explanations=moved)

    def split(self) -> Iterator[ExplainedInput]:
        """Each of the inputs."""
        for sample, index in enumerate(self.indices):
            selected = {
                label: select_sample(one, sample, self.prepared)
                for label, one in self.explanations.items()
            }
            yield ExplainedInput(index, self.loaded, selected, self.parts[sample])


class BatchExplainer:
    """Explain inputs with one model, a batch at a time.

    Args:
        settings: How to explain, and the size of a batch.
        loaded: The model.
        threads: How many inputs are read at once. With more than one, the next batch of photos is
            prepared while a batch is explained.
        is_proven: Whether the settings are known to work, so that what fails is the input's fault.
        start_preparing: Begins to prepare photos in other processes, in place of threads; see
            `PhotoPreparer.bind`.
    """

    def __init__(
        self,
        settings: ExplainSettings,
        loaded: LoadedModel,
        threads: int = 1,
        is_proven: bool = False,
        start_preparing: Callable[[Sequence[Readable]], Prepared] | None = None,
    ) -> None:
        self.settings = settings
        self.loaded = loaded
        self.threads = threads
        self.is_proven = is_proven
        self.start_preparing = start_preparing
        self._warned: set[str] = set()
        self._compiled: set[object] = set()  # sizes of photos of which a full batch came

    def explain(self, inputs: Iterable[Readable]) -> Iterator[ExplainedInput]:
        """Read and prepare inputs one by one; explain those of one size together.

        Args:
            inputs: Any number; they are taken one batch ahead, and not kept.

        Yields:
            Each input once, with its place among those given; within a batch in any order.

        Raises:
            WhenceError: An input failed, and none was explained before; see `is_proven`.
        """
        yield from _split(self.explain_batches(inputs))

    def explain_batches(
        self, inputs: Iterable[Readable]
    ) -> Iterator[ExplainedBatch | ExplainedInput]:
        """Explain inputs as `explain` does, and yield whole batches, and inputs that failed."""
        first = 0
        for batch in self._prepare_batches(inputs):
            groups: dict[object, dict[int, PreparedBatch]] = {}
            for index, prepared in enumerate(batch, first):
                if isinstance(prepared, Failure):
                    yield self._fail(index, prepared.why)
                else:
                    groups.setdefault(_find_size(prepared), {})[index] = prepared
            for group in groups.values():
                yield from self._explain_group(group)
            first += len(batch)

    def _prepare_batches(
        self, inputs: Iterable[Readable]
    ) -> Iterator[list[PreparedBatch | Failure]]:
        """Prepare the inputs, batch by batch; with processes or threads, some batches ahead."""
        rest = iter(inputs)
        batches = iter(lambda: list(islice(rest, self.settings.batch)), [])
        if self.start_preparing is not None:
            ahead = max(1, _PREPARED_AHEAD // self.settings.batch)
            yield from _finish_in_order(map(self.start_preparing, batches), ahead)
        elif self.threads == 1:
            for batch in batches:
                yield [self._finish(self._read_input(one)) for one in batch]
        else:
            pool = ThreadPoolExecutor(self.threads)
            try:
                yield from _finish_in_order((self._start(pool, one) for one in batches), 1)
            finally:
                pool.shutdown(cancel_futures=True)

    def _start(self, pool: ThreadPoolExecutor, batch: list[Readable]) -> Prepared:
        """Begin to read a batch by threads; what is returned waits for them."""
        started = [pool.submit(self._read_input, one) for one in batch]
        return lambda: [self._finish(one.result()) for one in started]

    def _read_input(self, one: Readable) -> PreparedBatch | str | Failure:
        """Read an input, and prepare a photo. A tokenizer may be used by one thread only."""
        content = read_input(one)
        if self.loaded.kind == "text" and isinstance(content, str):
            return content
        return prepare_input(content, self.loaded.preprocessor)

    def _finish(self, content: PreparedBatch | str | Failure) -> PreparedBatch | Failure:
        if isinstance(content, str):
            return prepare_input(content, self.loaded.preprocessor)
        return content

    def _explain_group(
        self, group: dict[int, PreparedBatch], is_again: bool = False
    ) -> Iterator[ExplainedBatch | ExplainedInput]:
        parts = list(group.values())
        try:
            batch = self._join(parts)
            by_label = self._explain_methods(batch, is_again)
        except WhenceError as error:
            if len(group) == 1 and not self.is_proven:
                # Nothing is known to work: the model or the settings are wrong, not this input.
                raise
            if len(group) == 1:
                yield self._fail(next(iter(group)), str(error))
                return
            for index, prepared in group.items():
                yield from self._explain_group({index: prepared}, is_again=True)
            return
        self.is_proven = True
        yield ExplainedBatch(list(group), self.loaded, by_label, batch, parts)

    def _join(self, parts: list[PreparedBatch]) -> PreparedBatch:
        """Join inputs where they are, and move them to the model's device at once."""
        try:
            one = len(parts) == 1
            joined = parts[0] if one else join_batches(parts, self.loaded.tokenizer)
            return self.loaded.move(joined)
        except torch.OutOfMemoryError:
            raise WhenceError(_SHORT_MEMORY) from None

    def _explain_methods(self, batch: PreparedBatch, is_again: bool) -> dict[str, Explanation]:
        """Explain a batch by each method; photos too few for the compiled program are repeated."""
        loaded, given = self._eager, batch
        if self.settings.compile and not is_again:
            size = _find_size(batch)
            if self._is_common(batch):
                self._compiled.add(size)
                loaded = self.loaded
            elif size in self._compiled and size is not None:
                given = _repeat_last(batch, self.settings.batch)
                loaded = self.loaded
        found = {one.label: self._explain(loaded, given, one) for one in self.settings.methods}
        if given is batch:
            return found
        return {label: one[: len(batch)] for label, one in found.items()}

    def _is_common(self, batch: PreparedBatch) -> bool:
        """Whether other batches have this shape: full ones of photos, or of texts that were cut."""
        if len(batch) < self.settings.batch:
            return False
        if isinstance(batch.inputs, torch.Tensor):
            return True
        length: int = batch.inputs["input_ids"].shape[1]
        return length == getattr(self.loaded.preprocessor, "max_length", None)

    @cached_property
    def _eager(self) -> LoadedModel:
        """The model for batches of rare shapes, for which nothing is compiled."""
        return self.loaded.to_eager() if self.settings.compile else self.loaded

    def _explain(
        self, loaded: LoadedModel, batch: PreparedBatch, method: MethodSpecification
    ) -> Explanation:
        request = {**self.settings.target_arguments(), **method.explain_arguments()}
        try:
            settings = self.settings
            with self._warn_once():
                return loaded.explain(
                    batch,
                    **request,
                    of=settings.of,
                    memory=settings.memory,
                    verify=settings.verify,
                )
        except WhenceError:
            raise
        except torch.OutOfMemoryError:
            raise WhenceError(_SHORT_MEMORY) from None
        except Exception as error:  # a model or a method of the user's may raise anything
            message = f"Model or method failed: {type(error).__name__}: {first_line(error)}."
            raise WhenceError(message) from error

    @contextmanager
    def _warn_once(self) -> Iterator[None]:
        """Show each warning of this block once, and not for every batch."""
        show = warnings.showwarning

        def show_new(
            message: Warning | str, category: type[Warning], *where: Any, **more: Any
        ) -> None:
            if str(message) not in self._warned and len(self._warned) < _MAX_WARNINGS:
                self._warned.add(str(message))
                show(message, category, *where, **more)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # notes of the result say it
            warnings.showwarning = show_new
            yield

    def _fail(self, index: int, why: str) -> ExplainedInput:
        return ExplainedInput(index, self.loaded, error=why)


def explain_sources(
    settings: ExplainSettings, sources: Sequence[Source], models: dict[Kind, LoadedModel]
) -> Iterator[ExplainedInput]:
    """Explain inputs as `explain_source_batches` does, and yield them one by one."""
    yield from _split(explain_source_batches(settings, sources, models))


def explain_source_batches(
    settings: ExplainSettings,
    sources: Sequence[Source],
    models: dict[Kind, LoadedModel],
    preparer: PhotoPreparer | None = None,
) -> Iterator[ExplainedBatch | ExplainedInput]:
    """Explain inputs with the models of `ExplainSettings.load_models`, model by model.

    Args:
        settings: How to explain them.
        sources: The inputs.
        models: Of each kind of input.
        preparer: Prepares photos in other processes, where it can.

    Yields:
        Batches, and inputs that failed, with their error; if no input can be explained, it is
        raised.
    """
    for index, source in enumerate(sources):
        if source.problem is not None or source.kind not in models:
            other = next(iter(models.values()))
            kinds = f"{NOUNS[other.kind]}, not {NOUNS[source.kind]}"
            mismatch = f"The model '{other.title}' explains {kinds}."
            yield ExplainedInput(index, other, error=source.problem or mismatch)
    readable = [index for index, source in enumerate(sources) if source.problem is None]
    for kind, loaded in models.items():
        indices = [index for index in readable if sources[index].kind == kind]
        unsuited = _find_unsuited_method(settings, kind, models)
        if unsuited:
            # It explains inputs of the other kind: these inputs fail, and the others do not.
            yield from (ExplainedInput(index, loaded, error=unsuited) for index in indices)
            continue
        start = preparer.bind(loaded.preprocessor) if preparer is not None else None
        threads = _count_threads(kind, len(indices))
        explainer = BatchExplainer(settings, loaded, threads, start_preparing=start)
        for one in explainer.explain_batches([sources[index] for index in indices]):
            if isinstance(one, ExplainedInput):
                yield dataclasses.replace(one, index=indices[one.index])
            else:
                yield dataclasses.replace(one, indices=[indices[index] for index in one.indices])


def _split(found: Iterable[ExplainedBatch | ExplainedInput]) -> Iterator[ExplainedInput]:
    for one in found:
        if isinstance(one, ExplainedInput):
            yield one
        else:
            yield from one.split()


def _move_to_cpu(explanation: Explanation) -> Explanation:
    if explanation.scores.device.type == "cpu":
        return explanation
    moved: dict[str, Any] = {
        name: value.cpu()
        for name, value in vars(explanation).items()
        if isinstance(value, torch.Tensor)
    }
    return dataclasses.replace(explanation, **moved)


def _finish_in_order(started: Iterable[Callable[[], Found]], ahead: int) -> Iterator[Found]:
    """Wait for what was started, in order; so many are started before the first is waited for."""
    pending: deque[Callable[[], Found]] = deque()
    for one in started:
        pending.append(one)
        if len(pending) > ahead:
            yield pending.popleft()()
    while pending:
        yield pending.popleft()()


def _count_threads(kind: Kind, inputs: int) -> int:
    """Count the threads that read and prepare inputs; one for few of them, and for texts."""
    if kind != "image" or inputs < MANY:
        return 1
    return min(_MAX_THREADS, count_cpus())


def _find_unsuited_method(
    settings: ExplainSettings, kind: Kind, models: dict[Kind, LoadedModel]
) -> str | None:
    for one in settings.methods:
        kinds = one.description.inputs
        if kind not in kinds and set(models) & set(kinds):
            return f"Method '{one.name}' explains {' and '.join(kinds)}s only."
    return None


def _find_size(batch: PreparedBatch) -> torch.Size | None:
    """The size of photos; None of texts, which are padded to one length."""
    return batch.inputs.shape[1:] if isinstance(batch.inputs, torch.Tensor) else None


def _repeat_last(batch: PreparedBatch, count: int) -> PreparedBatch:
    """The batch of photos with its last one repeated up to so many."""
    assert isinstance(batch.inputs, torch.Tensor)
    places = torch.arange(count, device=batch.inputs.device).clamp(max=len(batch) - 1)
    listed = places.tolist()
    photos = None if batch.photos is None else [batch.photos[place] for place in listed]
    notes = [batch.notes[place] for place in listed]
    return dataclasses.replace(batch, inputs=batch.inputs[places], notes=notes, photos=photos)
