"""Further forward passes of the model that is explained, at inputs of a method's choosing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence._util.progress import bar
from whence.errors import WhenceError
from whence.evidence.sample_rows import SampleRows
from whence.inputs.arguments import ModelArguments, is_text
from whence.rules import RuleSet
from whence.tracing import (
    Edit,
    Intervention,
    Trace,
    copy_arguments,
    record,
    replicate,
)
from whence.tracing.calls import name_of
from whence.tracing.logits import read_logits
from whence.tracing.recorder import is_lookup


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

    Raises:
        WhenceError: It is not proven that rows can be run apart from each other.

    Attributes:
        inputs: (batch, ...), the pixels or embeddings that the model saw.
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
    ) -> None:
        if len(trace.inputs) != 1:
            raise WhenceError(
                f"The model reads its input in {len(trace.inputs)} places, so that it cannot be "
                f"run with a changed input. Methods that read one forward pass, such as 'tiba', "
                f"work without."
            )
        self.inputs = trace.inputs[0].leaf.detach()
        self._model = model
        self._stand_in: nn.Module | None = None
        main, logits = arguments.main_at, trace.logits.detach()
        found = (rows or SampleRows()).find(model, arguments, output, (main,), logits)
        if found is None:
            raise WhenceError(
                "Methods of many forward passes run each sample in rows of its own, and whence "
                "cannot prove that the model's rows do not depend on each other. If they do not, "
                "name the inputs that hold one row for each sample: Explainer(model, "
                "per_sample=(...)). Methods that read one forward pass, such as 'tiba', work "
                "without."
            )
        self._arguments = found
        self._output = output
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
    def __call__(self, inputs: Tensor, samples: Tensor) -> Tensor:
        """Logits of rows, (rows, classes), in as many passes as memory asks for.

        Args:
            inputs: (rows, ...), pixels or embeddings.
            samples: (rows,), which sample of the batch each row is.
        """
        step = self.rows_at_once
        starts = range(0, len(inputs), step)
        logits = [self._run(inputs[at : at + step], samples[at : at + step]) for at in starts]
        return torch.cat(logits)

    def as_function(self, rules: RuleSet | None = None) -> Callable[[Tensor, Tensor], Tensor]:
        """The model as a function of (inputs, samples) to logits that autograd can go through.

        Args:
            rules: How values pass operations in a backward pass; None for plain gradients.
        """
        if rules is None:
            return self._run
        of = self._arguments.main_at
        return lambda inputs, samples: (
            self._record(samples, Intervention(inputs * 1, rules=rules, of=of)).logits
        )

    def run_edited(self, samples: Tensor, edits: Mapping[int, Edit]) -> Tensor:
        """Logits of rows that are computed with changes inside of the model.

        Args:
            samples: (rows,), which sample of the batch each row is.
            edits: What to change, by the index of the operation in the recorded forward pass.
        """
        return self._record(samples, Intervention(edits=edits, forward_only=True)).logits.detach()

    def _run(self, inputs: Tensor, samples: Tensor) -> Tensor:
        if self._stand_in is None:
            self._stand_in = replicate(self._model)
        arguments = self._arguments.select_rows(samples).copy_with(copy_arguments)
        if arguments.main.is_floating_point():
            arguments = arguments.replace_main(inputs)
            return self._get_logits(self._stand_in(*arguments.args, **arguments.kwargs))
        with _ReplaceEmbeddings(arguments.main, inputs):
            return self._get_logits(self._stand_in(*arguments.args, **arguments.kwargs))

    def _record(self, samples: Tensor, intervention: Intervention) -> Trace:
        chosen = self._arguments.select_rows(samples)
        return record(
            self._model, chosen.args, chosen.kwargs, chosen.explained, self._output, intervention
        )

    def _get_logits(self, returned: Any) -> Tensor:
        if self._output is not None:
            return self._output(returned)
        of_text = is_text(self._arguments.main_at, self._arguments.main)
        return read_logits(returned, of_text).values


class _ReplaceEmbeddings(TorchFunctionMode):
    """While on, looking up the embeddings of some token ids gives other embeddings."""

    def __init__(self, ids: Tensor, embeddings: Tensor) -> None:
        super().__init__()
        self._ids = ids
        self._embeddings = embeddings

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        arguments = (*args, *(kwargs or {}).values())
        looked_up = is_lookup(name_of(func), arguments, result, self._ids, Tensor.item)
        return self._embeddings if looked_up else result


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
