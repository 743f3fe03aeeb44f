"""A stand-in for a model that shares its parameters and nothing else.

Explaining runs the stand-in, so the model itself is never touched: not its mode, not its hooks, not
its buffers; nothing needs to be put back when something fails, and threads do not meet.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError

# What a forward pass does in training only, or not at all here.
_REGISTRIES = (dict, OrderedDict)
_ATOMIC = (bool, int, float, str, type(None))
_SWITCHED_OFF = {
    "training": False,
    "grad_checkpointing": False,
    "gradient_checkpointing": False,
    "_compiled_call_impl": None,
}


def replicate(model: nn.Module) -> nn.Module:
    """Copy the tree of modules, in evaluation mode, with the model's own parameters.

    Raises:
        WhenceError: Part of the model is TorchScript, whose calls cannot be seen.
    """
    return _Copies().module(unwrapped(model))


class _Copies:
    """Copies of modules and of what they hold, each made once."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._originals: list[Any] = []  # kept, so that no id is used twice
        self._by_type: dict[type, Callable[[Any], Any]] = {
            dict: lambda d: {k: self.value(v) for k, v in d.items()},
            OrderedDict: lambda d: OrderedDict((k, self.value(v)) for k, v in d.items()),
            list: lambda items: [self.value(v) for v in items],
            tuple: lambda items: tuple(self.value(v) for v in items),
            set: set.copy,
            Tensor: lambda t: t.detach().clone(),
            types.MethodType: self._method,
            functools.partial: self._partial,
        }

    def value(self, value: Any) -> Any:
        """A copy of what a module can change or run; anything else, parameters too, as it is."""
        copier = self._by_type.get(type(value))
        if copier is not None:
            return self._once(value, copier)
        return self.module(unwrapped(value)) if isinstance(value, nn.Module) else value

    def _once(self, value: Any, copier: Callable[[Any], Any]) -> Any:
        if id(value) not in self._made:
            self._originals.append(value)
            self._made[id(value)] = copier(value)
        return self._made[id(value)]

    def module(self, module: nn.Module) -> nn.Module:
        """The copy of a module."""
        if id(module) in self._made:
            known: nn.Module = self._made[id(module)]
            return known
        if isinstance(module, torch.jit.ScriptModule):
            raise WhenceError(
                f"{type(module).__name__} is a TorchScript module, which hides its calls; give "
                f"whence the Python model it was made from."
            )
        copy = object.__new__(type(module))
        self._made[id(module)] = copy
        self._originals.append(module)
        attributes = module.__dict__.copy()
        for name, held in module.__dict__.items():
            kind = type(held)
            if kind in _REGISTRIES and not held:  # nearly all are empty: no hooks, no buffers
                attributes[name] = kind()
            elif kind not in _ATOMIC:
                attributes[name] = self.value(held)
        for name in _SWITCHED_OFF.keys() & attributes.keys():
            attributes[name] = _SWITCHED_OFF[name]
        attributes["_backward_hooks"] = OrderedDict()
        attributes["_backward_pre_hooks"] = OrderedDict()
        copy.__dict__.update(attributes)
        return copy

    def _method(self, method: types.MethodType) -> Any:
        owner = self._made.get(id(method.__self__))
        return method if owner is None else types.MethodType(method.__func__, owner)

    def _partial(self, partial: functools.partial[Any]) -> Any:
        args, kwargs = self.value(partial.args), self.value(partial.keywords)
        return functools.partial(self.value(partial.func), *args, **kwargs)


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Its parameters and buffers, as fast as they can be listed; some perhaps twice."""
    found: list[Tensor | None] = []
    modules, seen = [model], {id(model)}
    while modules:
        module = modules.pop()
        found.extend(module._parameters.values())
        found.extend(module._buffers.values())
        for inner in module._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                modules.append(inner)
    return [tensor for tensor in found if tensor is not None]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``, ``DataParallel`` and the like."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
