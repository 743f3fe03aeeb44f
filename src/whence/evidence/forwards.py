"""Further forward passes of the model that is explained, at inputs of a method's choosing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence._util.progress import bar
from whence._util.torch_products import use_quick_products
from whence.errors import WhenceError
from whence.evidence.sample_rows import SampleRows
from whence.inputs.arguments import ArgumentKey, ModelArguments, is_text
from whence.rules import RuleSet
from whence.tracing import (
    Edit,
    Intervention,
    Trace,
    copy_arguments,
    record,
    replicate,
)
from whence.tracing.addresses import Address
from whence.tracing.calls import name_of
from whence.tracing.ids import IdTracker
from whence.tracing.logits import read_logits


class Forwards:
    """Runs the model again, as often as a method wants, in chunks that fit into memory.

    Every pass is over rows. A row is one sample of the batch, given by its index, whose pixels or
    embeddings a method may have changed; all other arguments of the model go with it.

    Args:
        model: The model; a stand-in is run, so it is not touched.
        arguments: What it was called with.
        output: Gets the logits from what it returns.
        trace: The recorded forward pass.
        max_bytes: How many bytes passes may take.
        rows: Finds which arguments hold one row for each sample.
        text: Token ids that were recorded beside the explained input, if any.

    Raises:
        WhenceError: It is not proven that rows can be run apart from each other.

    Attributes:
        inputs: (batch, ...), the pixels or embeddings that the model saw, at each place where it
            reads the input.
        rows: For each place, (batch, ...), the number of the token id that each row of embeddings
            comes from, as in `InputPlace`; None if the model reads the input itself there.
        rows_at_once: How many rows fit into memory together.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: ModelArguments,
        output: Callable[[Any], Tensor] | None,
        trace: Trace,
        max_bytes: float,
        rows: SampleRows | None = None,
        text: ArgumentKey | None = None,
    ) -> None:
        _refuse_cache(arguments)
        units = arguments.main[0].numel()
        self._places = [SampleOrder.find(place.rows, trace.batch, units) for place in trace.inputs]
        ordered = list(zip(self._places, trace.inputs, strict=True))
        self.inputs = [order.to_samples(place.leaf.detach()) for order, place in ordered]
        self.rows = [
            None if place.rows is None else order.to_samples(place.rows) for order, place in ordered
        ]
        self._batch = trace.batch
        self._model = model
        self._stand_in: nn.Module | None = None
        found = (rows or SampleRows()).find(model, arguments, output, (arguments.main_at,))
        if found is None:
            raise WhenceError(
                "Methods of many forward passes run each sample in rows of its own, and whence "
                "cannot prove that the model's rows do not depend on each other. If they do not, "
                "name the inputs that hold one row for each sample: Explainer(model, "
                "per_sample=(...)). Methods that read one forward pass, such as 'tiba', work "
                "without."
            )
        self._arguments = found
        self._output, self._text = output, text
        # By sample: the same operations are then recorded without maps, of any number of rows.
        self._map_bytes = trace.bounds.map / trace.batch
        self.rows_at_once = max(1, int(max_bytes * trace.batch / _count_kept_bytes(trace)))

    def chunks(self, rows: int, doing: str, at_once: int | None = None) -> Iterator[slice]:
        """Slices of so many rows that fit into memory, while progress is shown.

        Args:
            rows: How many rows there are.
            doing: What is being done, in a word or two.
            at_once: How many rows go together; as many as fit if left out.
        """
        at_once = min(self.rows_at_once, at_once or self.rows_at_once)
        with bar(doing, rows) as advance:
            for start in range(0, rows, at_once):
                stop = min(start + at_once, rows)
                yield slice(start, stop)
                advance(stop - start)

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor], samples: Tensor) -> Tensor:
        """Logits of rows, (rows, classes), in as many passes as memory asks for.

        Args:
            inputs: (rows, ...), pixels or embeddings, for each place.
            samples: (rows,), which sample of the batch each row is.
        """
        step = self.rows_at_once
        chunks = (slice(at, at + step) for at in range(0, len(samples), step))
        return torch.cat([self._run(*(x[c] for x in inputs), samples[c]) for c in chunks])

    def as_function(self, rules: RuleSet | None = None) -> Callable[..., Tensor]:
        """The model as a function that autograd can go through.

        It takes the inputs, one for each place, then samples, and gives logits.

        Args:
            rules: How values pass operations in a backward pass; None for plain gradients.
        """
        if rules is None:
            return self._run
        of = self._arguments.main_at

        def run(*given: Tensor) -> Tensor:
            *inputs, samples = given
            leaves = [order.to_place(x * 1) for order, x in zip(self._places, inputs, strict=True)]
            trace = self._record(samples, Intervention(leaves, rules=rules, of=of))
            rules.prepare(trace)
            return trace.logits

        return run

    def make_baseline(self, value: float) -> list[Tensor]:
        """The inputs with a value in place of all that comes from what the user gave."""
        return [
            torch.full_like(x, value)
            if ids is None
            else torch.where(ids.reshape(*ids.shape, *[1] * (x.dim() - ids.dim())) < 0, x, value)
            for x, ids in zip(self.inputs, self.rows, strict=True)
        ]

    def run_edited(self, samples: Tensor, edits: Mapping[int, Edit]) -> Tensor:
        """Logits of rows that are computed with changes inside of the model.

        Args:
            samples: (rows,), which sample of the batch each row is.
            edits: What to change, by the index of the operation in the recorded forward pass.

        Raises:
            WhenceError: The model did not compute one of these operations this time.
        """
        return self._record_edited(samples, edits, Intervention(forward_only=True)).logits.detach()

    def record_from(self, index: int, value: Tensor, copies: int = 1) -> tuple[Trace, Tensor]:
        """Record what the model makes of another value in place of an operation's output.

        Only what comes after that operation can be read.

        Args:
            index: The index of the operation in the recorded forward pass.
            value: As its output, of all samples, and that as many times as there are copies.
            copies: How many values of each sample go together, as rows of one pass.

        Returns:
            The trace, and the value as a leaf of its graph.

        Raises:
            WhenceError: The model did not compute this operation this time.
        """
        with torch.inference_mode(False):
            leaf = value.detach().requires_grad_()
        edits = {index: Edit(output=lambda _: leaf.clone())}
        how = Intervention(keeps_after_edit=True)
        return self._record_edited(self._every.repeat(copies), edits, how), leaf

    def _record_edited(
        self, samples: Tensor, edits: Mapping[int, Edit], how: Intervention
    ) -> Trace:
        by_address = {self._addresses[index]: edit for index, edit in edits.items()}
        run = self._record(samples, dataclasses.replace(how, edits=by_address))
        missing = by_address.keys() - set(run.addresses)
        if missing:
            raise WhenceError(
                f"What the model computes in module '{min(missing).module}' depends on the values, "
                f"so that this method cannot change it. Methods that read one forward pass, such "
                f"as 'tiba', work without."
            )
        return run

    @property
    def _every(self) -> Tensor:
        """The indices of all samples."""
        return torch.arange(self._batch, device=self._arguments.main.device)

    @cached_property
    def _addresses(self) -> list[Address]:
        """Where in the model each operation of the recorded forward pass is computed."""
        run = Intervention(finds_addresses=True, forward_only=True)
        return self._record(self._every, run).addresses

    def _run(self, *given: Tensor) -> Tensor:
        *inputs, samples = given
        if self._stand_in is None:
            self._stand_in = replicate(self._model)
        arguments = self._arguments.select_rows(samples).copy_with(copy_arguments)
        if arguments.main.is_floating_point():
            arguments = arguments.replace_main(inputs[0].clone())  # the model may write to it
            with use_quick_products(arguments.main.device):
                return self._get_logits(self._stand_in(*arguments.args, **arguments.kwargs))
        placed = [order.to_place(x) for order, x in zip(self._places, inputs, strict=True)]
        replaced = _ReplaceEmbeddings(arguments.main, placed)
        with replaced, use_quick_products(arguments.main.device):
            return self._get_logits(self._stand_in(*arguments.args, **arguments.kwargs))

    def _record(self, samples: Tensor, intervention: Intervention) -> Trace:
        chosen = self._arguments.select_rows(samples)
        return record(
            self._model,
            chosen.args,
            chosen.kwargs,
            chosen.explained_names,
            self._output,
            intervention,
            max_map_bytes=self._map_bytes * len(samples),
            needs_attention=False,
            text=self._text,
        )

    def _get_logits(self, returned: Any) -> Tensor:
        if self._output is not None:
            return self._output(returned)
        of_text = is_text(self._arguments.main_at, self._arguments.main)
        return read_logits(returned, of_text).values


def _refuse_cache(arguments: ModelArguments) -> None:
    """Refuse keys and values of tokens that are not among the inputs."""
    for name, value in arguments.kwargs.items():
        count = getattr(value, "get_seq_length", None)
        if callable(count) and count() > 0:
            raise WhenceError(
                f"'{name}' holds keys and values of {count()} earlier tokens, and methods of many "
                f"forward passes cannot go on from there. Give the whole text, without '{name}'."
            )


class _ReplaceEmbeddings(TorchFunctionMode):
    """While on, looking up the embeddings of some token ids gives others, one after the other."""

    def __init__(self, ids: Tensor, embeddings: Iterable[Tensor]) -> None:
        super().__init__()
        self._ids = IdTracker({0: ids})
        self._embeddings = iter(embeddings)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        lookup = self._ids.observe(name_of(func), func, args, kwargs or {}, result)
        return result if lookup is None else next(self._embeddings).clone()


class SampleOrder(NamedTuple):
    """Where samples are in the embeddings that a model looks up.

    Attributes:
        batch: Number of samples that were recorded.
        dim: The dimension of samples.
        folded: Whether it is one with that of tokens: 0 if not, 1 if samples come first, 2 if
            tokens do.
    """

    batch: int
    dim: int = 0
    folded: int = 0

    @classmethod
    def find(cls, rows: Tensor | None, batch: int, units: int) -> SampleOrder:
        """Find it from the numbers of the token ids, counted over the batch.

        Raises:
            WhenceError: Embeddings are in no such order.
        """
        if rows is None:
            return cls(batch)
        for dim, length in enumerate(rows.shape):
            if length == batch and _are_samples(rows.movedim(dim, 0), units):
                return cls(batch, dim)
        if rows.dim() == 1 and len(rows) % batch == 0:
            for folded, order in ((1, rows.reshape(batch, -1)), (2, rows.reshape(-1, batch).T)):
                if _are_samples(order, units):
                    return cls(batch, folded=folded)
        raise WhenceError(
            "The model looks its token ids up in an order in which samples cannot be told apart. "
            "It cannot be run with changed embeddings: explain one sample at a time."
        )

    def to_samples(self, value: Tensor) -> Tensor:
        """A value at a place, as (samples, ...)."""
        if not self.folded:
            return value.movedim(self.dim, 0)
        first, rest = self.batch, value.shape[1:]
        if self.folded == 1:
            return value.reshape(first, -1, *rest)
        return value.reshape(-1, first, *rest).transpose(0, 1)

    def to_place(self, value: Tensor) -> Tensor:
        """A value of (samples, ...) as the model has it."""
        if not self.folded:
            return value.movedim(0, self.dim)
        return (value if self.folded == 1 else value.transpose(0, 1)).flatten(0, 1)


def _are_samples(rows: Tensor, units: int) -> bool:
    """Whether the first dimension of rows is the sample that their ids are of."""
    number = torch.arange(len(rows), device=rows.device).reshape(-1, *[1] * (rows.dim() - 1))
    return bool(((rows < 0) | (rows // units == number)).all())


def _count_kept_bytes(trace: Trace) -> int:
    """What the operations of a trace keep of their inputs and outputs, in bytes."""
    sizes = {}
    for entry in trace.entries:
        for name, value in vars(entry.operation).items():
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor) and name not in ("weight", "bias"):
                    storage = tensor.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    return max(1, sum(sizes.values()))
