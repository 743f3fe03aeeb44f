"""The arguments that a model is called with: which of them is explained, and which goes with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from whence._util.torch_internals import module_registries
from whence.errors import WhenceError

ArgumentKey: TypeAlias = str | int
"""An argument of a model, by name or position."""

# Arguments that hold a text.
_TEXTS = ("input_ids", "inputs_embeds")
# Arguments that go with a text.
_TEXT_SIDE = {*_TEXTS, "attention_mask", "token_type_ids", "position_ids"}
# What models compare texts with, and how a processor takes it.
_COMPARED = {"image": "images=photos", "video": "videos=videos", "audio": "audio=sounds"}


@dataclass(frozen=True)
class ModelArguments:
    """The arguments of a model's forward.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        main_at: Position or name of the argument that is explained; its rows are the batch.
        others_at: Further arguments that are explained by the same forward pass.
        per_sample: Arguments that hold one row for each sample; None if that is not known.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    main_at: ArgumentKey = 0
    others_at: tuple[ArgumentKey, ...] = ()
    per_sample: frozenset[ArgumentKey] | None = None

    @classmethod
    def from_inputs(
        cls, inputs: Any, model: nn.Module, of: ArgumentKey | Sequence[ArgumentKey] | None = None
    ) -> ModelArguments:
        """The arguments for a batch as a user gives it.

        Args:
            inputs: A tensor, or a mapping of tensors.
            model: The model.
            of: Which of them are explained; None for the model's main input.

        Raises:
            WhenceError: They are no inputs of the model, or `of` names none of them.
        """
        if isinstance(inputs, Tensor):
            first = next(iter(inspect.signature(model.forward).parameters), None)
            names = _list_names(0 if of is None else of)
            arguments = cls((inputs,), {}, *_split_names([0 if n == first else n for n in names]))
        elif isinstance(inputs, Mapping):
            names = [_find_main(inputs, model)] if of is None else _list_names(of)
            arguments = cls((), inputs, *_split_names(names))
        else:
            raise WhenceError(
                f"Inputs are a tensor, or a mapping of tensors as the model takes them, not "
                f"{type(inputs).__name__}. For photos, texts and datasets: "
                f"whence.explain(photo, model=model, processor=processor)."
            )
        arguments._check(model)
        return arguments

    @property
    def main(self) -> Tensor:
        """The argument that is explained."""
        main: Tensor = self._get(self.main_at)
        return main

    @property
    def explained_names(self) -> tuple[ArgumentKey, ...]:
        """All arguments that are explained, the main one first."""
        return (self.main_at, *self.others_at)

    def focus(self, name: ArgumentKey) -> ModelArguments:
        """The same arguments, with another of the explained ones as the main one."""
        others = tuple(one for one in self.explained_names if one != name)
        return replace(self, main_at=name, others_at=others)

    def _get(self, at: ArgumentKey) -> Any:
        holder: Any = self.args if isinstance(at, int) else self.kwargs
        return holder[at]

    @property
    def named_tensors(self) -> dict[ArgumentKey, Tensor]:
        """All arguments that are tensors, by name or position."""
        values: dict[ArgumentKey, Any] = dict(enumerate(self.args))
        values.update(self.kwargs)
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors."""
        values = (*self.args, *self.kwargs.values())
        return [value for value in values if isinstance(value, Tensor)]

    @property
    def others(self) -> dict[ArgumentKey, Any]:
        """All arguments that are no tensors, by name or position."""
        values: dict[ArgumentKey, Any] = dict(enumerate(self.args))
        values.update(self.kwargs)
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    @property
    def padding(self) -> Tensor | None:
        """(batch, tokens), true where a token is padding."""
        mask = self.kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2:
            return None
        # One row may stand for all samples.
        return (mask == 0).expand(len(self.main), -1) if len(mask) == 1 else mask == 0

    def select_rows(self, samples: Tensor | slice) -> ModelArguments:
        """The arguments for some of the samples, each as often as named."""
        return self.map_rows(
            lambda value: value[samples if isinstance(samples, slice) else samples.to(value.device)]
        )

    def with_rows(self, names: Iterable[ArgumentKey]) -> ModelArguments:
        """The same arguments, of which these hold one row for each sample."""
        return replace(self, per_sample=frozenset(names))

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> ModelArguments:
        """The arguments with others in place of those that hold one row for each sample."""
        if self.per_sample is None:
            raise RuntimeError("Which arguments hold one row for each sample is not known.")
        args, kwargs = list(self.args), dict(self.kwargs)
        for name in self.per_sample:
            holder: Any = args if isinstance(name, int) else kwargs
            holder[name] = change(holder[name])
        return replace(self, args=tuple(args), kwargs=kwargs)

    def replace_tensors(self, tensors: Iterable[Tensor]) -> ModelArguments:
        """The arguments with others in place of the tensors, in their order."""
        others = iter(tensors)
        return self._map(lambda value: next(others) if isinstance(value, Tensor) else value)

    def copy_with(
        self, copy: Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[list[Any], dict[str, Any]]]
    ) -> ModelArguments:
        """The arguments as a function copies them."""
        args, kwargs = copy(self.args, self.kwargs)
        return replace(self, args=tuple(args), kwargs=kwargs)

    def _map(self, change: Callable[[object], object]) -> ModelArguments:
        args = tuple(map(change, self.args))
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return replace(self, args=args, kwargs=kwargs)

    def replace_main(self, value: Tensor) -> ModelArguments:
        """The arguments with another value of the one that is explained."""
        if isinstance(self.main_at, int):
            args = list(self.args)
            args[self.main_at] = value
            return replace(self, args=tuple(args))
        return replace(self, kwargs={**self.kwargs, self.main_at: value})

    def _check(self, model: nn.Module) -> None:
        tensors = self.named_tensors
        for name in self.explained_names:
            if name not in tensors:
                raise WhenceError(
                    f"of={name!r} names no tensor of the inputs; they hold "
                    f"{', '.join(map(repr, tensors))}."
                )
        for tensor in self.tensors:
            _check_device(tensor, model)
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise WhenceError("The inputs hold NaN or infinite values.")
        for name in self.explained_names:
            shape = tuple(tensors[name].shape)
            if len(shape) < 2:
                raise WhenceError(f"A batch is needed, but the input has shape {shape}.")
            if 0 in shape:
                raise WhenceError(f"The batch is empty: its shape is {shape}.")


def is_text(name: ArgumentKey, value: Tensor) -> bool:
    """Whether an argument of a model is a text: token ids or their embeddings."""
    return name in _TEXTS or not value.is_floating_point()


def find_missing_pair(model: nn.Module, given: Iterable[object]) -> str | None:
    """Say what a model that compares texts with something else was not given; None if nothing.

    Args:
        model: The model; one that compares nothing misses nothing.
        given: Names of the inputs.
    """
    others = [kind for kind in _COMPARED if hasattr(model, f"get_{kind}_features")]
    if not hasattr(model, "get_text_features") or not others:
        return None
    named, (kind, *_) = set(given), others
    about = f"{type(model).__name__} compares texts with {kind}s, and the inputs hold no"
    both = f"Give both: processor(text=texts, {_COMPARED[kind]}, return_tensors='pt')."
    if not named & {"input_ids", "inputs_embeds"}:
        return f"{about} texts ('input_ids'). {both}"
    return None if named - _TEXT_SIDE else f"{about} {kind}s. {both}"


def _list_names(of: object) -> list[ArgumentKey]:
    """The names in ``of``: one, or several."""
    listed = list(of) if isinstance(of, list | tuple) else [of]
    right = [n for n in listed if isinstance(n, str | int) and not isinstance(n, bool)]
    if not right or len(right) < len(listed) or len(set(right)) < len(listed):
        raise WhenceError(
            f"of is the name of an input, such as 'pixel_values', or a list of different ones, "
            f"not {of!r}."
        )
    return right


def _split_names(names: Sequence[ArgumentKey]) -> tuple[ArgumentKey, tuple[ArgumentKey, ...]]:
    return names[0], tuple(names[1:])


def _find_main(inputs: Mapping[str, Any], model: nn.Module) -> str:
    tensors = [name for name, value in inputs.items() if isinstance(value, Tensor)]
    usual = (getattr(model, "main_input_name", None), "inputs_embeds", "pixel_values")
    for name in (*usual, "input_ids", "input_values", *tensors):
        if name in tensors:
            return str(name)
    raise WhenceError(
        'The inputs hold no tensor. With a tokenizer or processor, ask for return_tensors="pt".'
    )


def _check_device(tensor: Tensor, model: nn.Module) -> None:
    parameters = (p for p in model.parameters() if not p.is_meta)
    devices = set[torch.device]()
    for parameter in parameters:  # mostly the first tells
        if parameter.device == tensor.device:
            return
        devices.add(parameter.device)
    if len(devices) == 1:
        (device,) = devices
        raise WhenceError(
            f"The inputs are on {tensor.device} but the model is on {device}; move them with "
            f"inputs.to('{device}')."
        )


def is_plain(value: object) -> bool:
    """Whether a value is fully described by how it is written."""
    if isinstance(value, Mapping):
        return is_plain(list(value.items()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def list_tensors(model: nn.Module) -> list[Tensor]:
    """A model's parameters and buffers, as fast as they can be listed; some perhaps twice."""
    tensors: list[Tensor | None] = []
    modules, seen = [model], {id(model)}
    while modules:
        parameters, buffers, children = module_registries(modules.pop())
        tensors.extend(parameters.values())
        tensors.extend(buffers.values())
        for child in children.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return [tensor for tensor in tensors if tensor is not None]
