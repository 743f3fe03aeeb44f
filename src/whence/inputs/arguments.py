"""How a model is called: which argument is explained, and the rest that goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.tracing.replica import tensors_of


@dataclass(frozen=True)
class Call:
    """The arguments of a model's forward.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        main_at: Position or name of the argument that is explained.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    main_at: int | str = 0

    @classmethod
    def of(cls, inputs: Any, model: nn.Module) -> Call:
        """The call for a batch as a user gives it.

        Raises:
            WhenceError: The inputs cannot be given to this model.
        """
        if isinstance(inputs, Tensor):
            call = cls(args=(inputs,))
        elif isinstance(inputs, Mapping):
            call = cls(kwargs=inputs, main_at=_main_of(inputs, model))
        else:
            raise WhenceError(
                f"Inputs are a tensor, or a mapping of tensors as the model takes them, not "
                f"{type(inputs).__name__}."
            )
        call._check(model)
        return call

    @property
    def main(self) -> Tensor:
        """The argument that is explained."""
        holder: Any = self.args if isinstance(self.main_at, int) else self.kwargs
        main: Tensor = holder[self.main_at]
        return main

    @property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors."""
        values = (*self.args, *self.kwargs.values())
        return [value for value in values if isinstance(value, Tensor)]

    @property
    def padding(self) -> Tensor | None:
        """(batch, tokens), true where a token is padding."""
        mask = self.kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2:
            return None
        one_for_all = mask.shape[0] == 1
        return (mask == 0).expand(len(self.main), -1) if one_for_all else mask == 0

    def rows(self, samples: Tensor | slice) -> Call:
        """The call with some of its samples, each as often as named."""
        batch = len(self.main)

        def chosen(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.dim() and len(value) == batch):
                return value
            return value[samples if isinstance(samples, slice) else samples.to(value.device)]

        kwargs = {name: chosen(value) for name, value in self.kwargs.items()}
        return Call(tuple(map(chosen, self.args)), kwargs, self.main_at)

    def with_tensors(self, tensors: Iterable[Tensor]) -> Call:
        """The call with others in the place of its tensors, in their order."""
        others = iter(tensors)

        def exchanged(value: Any) -> Any:
            return next(others) if isinstance(value, Tensor) else value

        args = tuple(map(exchanged, self.args))
        kwargs = {name: exchanged(value) for name, value in self.kwargs.items()}
        return Call(args, kwargs, self.main_at)

    def with_main(self, value: Tensor) -> Call:
        """The call with another value of the argument that is explained."""
        if isinstance(self.main_at, int):
            args = list(self.args)
            args[self.main_at] = value
            return Call(tuple(args), self.kwargs, self.main_at)
        return Call(self.args, {**self.kwargs, self.main_at: value}, self.main_at)

    def _check(self, model: nn.Module) -> None:
        devices = {p.device for p in tensors_of(model) if isinstance(p, nn.Parameter)}
        for tensor in self.tensors:
            if len(devices) == 1 and tensor.device not in devices:
                device = devices.pop()
                raise WhenceError(
                    f"The inputs are on {tensor.device} but the model is on {device}; move them "
                    f"with inputs.to('{device}')."
                )
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise WhenceError("The inputs hold NaN or infinite values.")
        if self.main.dim() < 2:
            raise WhenceError(
                f"A batch is needed, but the input has shape {tuple(self.main.shape)}."
            )
        if 0 in self.main.shape:
            raise WhenceError(f"The batch is empty: its shape is {tuple(self.main.shape)}.")


def _main_of(inputs: Mapping[str, Any], model: nn.Module) -> str:
    tensors = [name for name, value in inputs.items() if isinstance(value, Tensor)]
    usual = (getattr(model, "main_input_name", None), "inputs_embeds", "pixel_values")
    for name in (*usual, "input_ids", "input_values", *tensors):
        if name in tensors:
            return str(name)
    raise WhenceError(
        'The inputs hold no tensor. With a tokenizer or processor, ask for return_tensors="pt".'
    )
