"""Further forward passes of the model that is explained, at inputs of a method's choosing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence._util.progress import bar
from whence.errors import WhenceError
from whence.inputs.arguments import Call
from whence.rules.balanced import Gradients, reading
from whence.tracing.calls import name_of
from whence.tracing.recorder import Edit, Run, is_lookup
from whence.tracing.replica import replicate
from whence.tracing.trace import Trace, find_logits, trace

# Gibibytes that passes may take on a CPU if the user names no bound.
_ON_A_CPU = 2.0
# Gibibytes that a recorded pass may keep at most, then: more would not make it faster.
_KEPT_AT_ONCE = 4.0


class Forwards:
    """Runs the model again, as often as a method wants, in parts that fit into memory.

    Every pass is over rows. A row is one sample of the batch, told by its index, whose pixels or
    embeddings a method may have changed; everything else that the model takes goes with it.

    Args:
        model: The model; a stand-in is run, so it is not touched.
        call: How it was called.
        output: Gets the logits from what it returns.
        traced: The recorded forward pass.
        memory: Gibibytes that passes may take; None for half of a GPU's free memory, or 2 on a CPU.

    Attributes:
        inputs: (batch, ...), the pixels or embeddings that the model saw.
        rows_at_once: How many rows fit into memory together.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        output: Callable[[Any], Tensor] | None,
        traced: Trace,
        memory: float | None = None,
    ) -> None:
        if len(traced.inputs) != 1:
            raise WhenceError(
                f"The model reads its input in {len(traced.inputs)} places, so that it cannot be "
                f"run with a changed input. Methods that read one forward pass, such as 'tiba', "
                f"work without."
            )
        self.inputs = traced.inputs[0].detach()
        self._model = model
        self._stand_in: nn.Module | None = None
        self._call = call
        self._output = output
        bound = _free(self.inputs.device) if memory is None else memory
        self.rows_at_once = max(1, int(bound * 2**30 * traced.batch / _bytes_kept(traced)))

    def parts(self, rows: int, doing: str, at_once: int | None = None) -> Iterator[slice]:
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
        parts = range(0, len(inputs), self.rows_at_once)
        logits = [
            self._plain(inputs[at : at + self.rows_at_once], samples[at : at + self.rows_at_once])
            for at in parts
        ]
        return torch.cat(logits)

    def differentiable(self, gradients: Gradients = "plain") -> Callable[[Tensor, Tensor], Tensor]:
        """The model as a function of (inputs, samples) to logits that autograd can go through.

        Args:
            gradients: Whether a backward pass through it gives plain or balanced gradients.
        """
        if gradients == "plain":
            return self._plain
        rules = reading(gradients)
        return lambda inputs, samples: self._run(samples, Run(inputs * 1, rules=rules)).logits

    def edited(self, samples: Tensor, edits: Mapping[int, Edit]) -> Tensor:
        """Logits of rows that are computed with changes inside of the model.

        Args:
            samples: (rows,), which sample of the batch each row is.
            edits: What to change, by the index of the operation in the recorded forward pass.
        """
        return self._run(samples, Run(edits=edits, forward_only=True)).logits.detach()

    def _plain(self, inputs: Tensor, samples: Tensor) -> Tensor:
        if self._stand_in is None:
            self._stand_in = replicate(self._model)
        call = self._call.rows(samples)
        if call.main.is_floating_point():
            call = call.with_main(inputs)
            return self._logits(self._stand_in(*call.args, **call.kwargs))
        with _Embedded(call.main, inputs):
            return self._logits(self._stand_in(*call.args, **call.kwargs))

    def _run(self, samples: Tensor, run: Run) -> Trace:
        call = self._call.rows(samples)
        return trace(self._model, call.args, dict(call.kwargs), call.main_at, self._output, run)

    def _logits(self, returned: Any) -> Tensor:
        return find_logits(returned) if self._output is None else self._output(returned)


class _Embedded(TorchFunctionMode):
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
        looked_up = is_lookup(name_of(func), (*args, *(kwargs or {}).values()), result, self._ids)
        return self._embeddings if looked_up else result


def _bytes_kept(traced: Trace) -> int:
    """What the operations of a trace keep of their inputs and outputs, in bytes."""
    sizes = {}
    for step in traced.steps:
        for name, value in vars(step.operation).items():
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor) and name not in ("weight", "bias"):
                    storage = tensor.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    return max(1, sum(sizes.values()))


def most_bytes(device: torch.device, memory: float | None) -> float:
    """What one recorded forward pass may keep, if the user names so many gibibytes or none."""
    if memory is not None:
        return memory * 2**30
    # A power of two, so that it is mostly the same from call to call while free memory varies.
    return 2.0 ** math.floor(math.log2(min(_free(device), _KEPT_AT_ONCE) * 2**30))


def _free(device: torch.device) -> float:
    if device.type != "cuda":
        return _ON_A_CPU
    free: int = torch.cuda.mem_get_info(device)[0]
    return free / 2 / 2**30
