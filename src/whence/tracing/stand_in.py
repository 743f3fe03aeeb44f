"""The stand-in that is run in place of a model: it shares the parameters and nothing else.

So the model itself is never touched: not its mode, not its hooks, not its buffers, and neither are
the arguments that the user calls it with. Nothing needs to be put back when something fails, and
threads do not meet. A stand-in is used again while neither the model nor it has changed.
"""

from __future__ import annotations

import copy
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence._util.torch_internals import (
    BACKWARD_HOOKS,
    COMPILED_CALL,
    module_registries,
    uncompiled_module,
)
from whence.errors import WhenceError

_REGISTRIES = (dict, OrderedDict)
_CONTAINERS = (dict, list, set)
_ATOMIC = (bool, int, float, str, type(None))
# Attributes by which a forward pass differs in training, or is compiled.
_SWITCHED_OFF = {
    "training": False,
    "grad_checkpointing": False,
    "gradient_checkpointing": False,
    COMPILED_CALL: None,
}


def replicate(model: nn.Module) -> nn.Module:
    """Copy the tree of modules, in evaluation mode, with the model's own parameters.

    Raises:
        WhenceError: Part of the model is TorchScript, whose calls cannot be seen.
    """
    return _ModuleCopier().copy_module(unwrap_model(model))


def name_modules(model: nn.Module) -> dict[nn.Module, str]:
    """All modules with their paths, in the order of ``named_modules``, which takes far longer."""
    names: dict[nn.Module, str] = {}
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if module not in names:
            names[module] = path
            inner = module_registries(module)[2]
            prefix = f"{path}." if path else ""
            for name, one in reversed(list(inner.items())):
                if one is not None:
                    waiting.append((prefix + name, one))
    return names


class StandIns:
    """Stand-ins of one model, each for one user at a time."""

    def __init__(self) -> None:
        self._idle: list[_ReusableStandIn] = []

    def __reduce__(self) -> tuple[type[StandIns], tuple[()]]:
        """A copy, which another process may want, begins anew."""
        return StandIns, ()

    @contextmanager
    def borrow(self, model: nn.Module) -> Iterator[nn.Module]:
        """A stand-in of the model as it is now, until the block ends.

        Raises:
            WhenceError: Part of the model is TorchScript, whose calls cannot be seen.
        """
        found = self._idle.pop() if self._idle else None
        if found is None or not found.renew(model):
            found = _ReusableStandIn(model)
        yield found.module
        if found.is_unchanged and not self._idle:
            self._idle.append(found)


class _Snapshot:
    """What modules, and containers that they hold, held at some time."""

    def __init__(self, modules: Iterable[nn.Module], containers: Iterable[Any]) -> None:
        listed = [*containers, *(module.__dict__ for module in modules)]
        self._empty = [held for held in listed if not held]
        self._filled = [(held, held.copy()) for held in listed if held]

    @property
    def holds(self) -> bool:
        """Whether they still hold the same."""
        try:
            return not any(self._empty) and all(held == before for held, before in self._filled)
        except Exception:  # to compare tensors, or objects of any kind, may fail
            return False


class _ReusableStandIn:
    """A stand-in that knows whether it still is one."""

    def __init__(self, model: nn.Module) -> None:
        copier = _ModuleCopier()
        self._original = unwrap_model(model)
        self.module = copier.copy_module(self._original)
        self._of_model, self._of_copy = copier.take_snapshots()
        self._tensors = copier.list_tensors()
        self._can_renew = all(_is_plain(tensor) for pair in self._tensors for tensor in pair)

    def renew(self, model: nn.Module) -> bool:
        """Take over the values of buffers; false if the model has changed in another way."""
        same = self._can_renew and unwrap_model(model) is self._original
        if not (same and self._of_model.holds):
            return False
        if any(original.shape != copied.shape for original, copied in self._tensors):
            return False
        for original, copied in self._tensors:
            copied.copy_(original)
        return True

    @property
    def is_unchanged(self) -> bool:
        """Whether a run has left it as it was, but for values of buffers."""
        return self._can_renew and self._of_copy.holds


def _is_plain(tensor: Tensor) -> bool:
    """Whether values can be written to a tensor."""
    strided = tensor.layout is torch.strided and not tensor.is_quantized
    return strided and not (tensor.requires_grad or tensor.is_inference())


class _ModuleCopier:
    """Copies modules and what they hold, each once."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}
        self._originals: list[Any] = []  # kept, so that no id is used twice
        self._empty: list[Any] = []  # containers that held nothing, and their copies
        self._empty_copies: list[Any] = []
        self._by_type: dict[type, Callable[[Any], Any]] = {
            dict: lambda d: {k: self.copy_value(v) for k, v in d.items()},
            OrderedDict: lambda d: OrderedDict((k, self.copy_value(v)) for k, v in d.items()),
            list: lambda items: [self.copy_value(v) for v in items],
            tuple: lambda items: tuple(self.copy_value(v) for v in items),
            set: set.copy,
            Tensor: lambda t: t.detach().clone(),
            types.MethodType: self._copy_method,
            functools.partial: self._copy_partial,
        }

    def copy_value(self, value: Any) -> Any:
        """A copy of what a module can change or run; anything else, parameters too, as it is."""
        copier = self._by_type.get(type(value))
        if copier is not None:
            return self._copy_once(value, copier)
        return self.copy_module(unwrap_model(value)) if isinstance(value, nn.Module) else value

    def _copy_once(self, value: Any, copier: Callable[[Any], Any]) -> Any:
        if id(value) not in self._copies:
            self._originals.append(value)
            self._copies[id(value)] = copier(value)
        return self._copies[id(value)]

    def copy_module(self, module: nn.Module) -> nn.Module:
        """The copy of a module."""
        if id(module) in self._copies:
            known: nn.Module = self._copies[id(module)]
            return known
        if isinstance(module, torch.jit.ScriptModule):
            raise WhenceError(
                f"{type(module).__name__} is a TorchScript module, which hides its calls; give "
                f"whence the Python model it was made from."
            )
        stand_in = object.__new__(type(module))
        self._copies[id(module)] = stand_in
        self._originals.append(module)
        attributes = module.__dict__.copy()
        for name, held in module.__dict__.items():
            kind = type(held)
            if kind in _REGISTRIES and not held:  # nearly all are empty: no hooks, no buffers
                attributes[name] = kind()
                self._empty.append(held)
                self._empty_copies.append(attributes[name])
            elif kind not in _ATOMIC:
                attributes[name] = self.copy_value(held)
        for name in _SWITCHED_OFF.keys() & attributes.keys():
            attributes[name] = _SWITCHED_OFF[name]
        attributes.update((name, OrderedDict()) for name in BACKWARD_HOOKS)
        stand_in.__dict__.update(attributes)
        return stand_in

    def take_snapshots(self) -> tuple[_Snapshot, _Snapshot]:
        """What was copied, and the copies, as they are now."""
        pairs = [(one, self._copies[id(one)]) for one in self._originals]
        modules = [pair for pair in pairs if isinstance(pair[0], nn.Module)]
        containers = [pair for pair in pairs if isinstance(pair[0], _CONTAINERS)]
        containers += zip(self._empty, self._empty_copies, strict=True)
        originals, copies = (
            _Snapshot((pair[side] for pair in modules), (pair[side] for pair in containers))
            for side in (0, 1)
        )
        return originals, copies

    def list_tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Tensors other than parameters, each with its copy."""
        tensors = [one for one in self._originals if isinstance(one, Tensor)]
        return [(one, self._copies[id(one)]) for one in tensors]

    def _copy_method(self, method: types.MethodType) -> Any:
        owner = self._copies.get(id(method.__self__))
        return method if owner is None else types.MethodType(method.__func__, owner)

    def _copy_partial(self, partial: functools.partial[Any]) -> Any:
        args, kwargs = self.copy_value(partial.args), self.copy_value(partial.keywords)
        return functools.partial(self.copy_value(partial.func), *args, **kwargs)


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``, ``DataParallel`` and the like."""
    while True:
        inner = uncompiled_module(model)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


# Arguments ---------------------------------------------------------------------------------------


def copy_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Copy the arguments of a call, so that a model can write to its own copies alone.

    A model may extend a cache of keys and values, or write to a tensor. Tensors are copied without
    the graph that they may be part of.

    Raises:
        WhenceError: An argument cannot be copied.
    """
    memo: dict[int, Any] = {}
    given = [_copy_argument(value, memo, at) for at, value in enumerate(args)]
    return given, {name: _copy_argument(value, memo, name) for name, value in kwargs.items()}


def _copy_argument(value: Any, memo: dict[int, Any], at: str | int) -> Any:
    try:
        with _CopyValues():
            return copy.deepcopy(value, memo)
    except Exception as error:  # objects fail in ways of their own
        raise WhenceError(
            f"Argument {at!r} ({type(value).__name__}) cannot be copied ({error}), so that whence "
            f"could not keep the model from changing it. Leave it out, or give plain tensors."
        ) from error


class _CopyValues(TorchFunctionMode):
    """While on, a deep copy of a tensor holds its values, and leaves its graph."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone()
        return memo[id(tensor)]
