"""A stand-in for a model that shares its parameters and nothing else.

Explaining runs the stand-in, so the model itself is never touched: not its mode, not its hooks, not
its buffers; nothing needs to be put back when something fails, and threads do not meet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from whence.errors import WhenceError


def replicate(model: nn.Module) -> nn.Module:
    """Copy the tree of modules, in evaluation mode, with the model's own parameters.

    Raises:
        WhenceError: The model is compiled to TorchScript, whose calls cannot be seen.
    """
    model = unwrapped(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise WhenceError(
            "A TorchScript model hides its calls; give whence the Python model it was made from."
        )
    buffers: dict[int, torch.Tensor] = {}
    copies: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        copies[module] = copy = module.__new__(type(module))
        # Registries of parameters, submodules and hooks are dictionaries: copied, not shared.
        copy.__dict__.update(
            (name, value.copy() if isinstance(value, dict) and name[0] == "_" else value)
            for name, value in module.__dict__.items()
        )
        copy.__dict__["training"] = False
        for name, buffer in module._buffers.items():
            copy.__dict__["_buffers"][name] = _copied(buffer, buffers)
    for copy in copies.values():
        submodules = copy.__dict__["_modules"]
        submodules.update((n, copies[m]) for n, m in submodules.items() if m is not None)
    return copies[model]


def _copied(buffer: Any, known: dict[int, torch.Tensor]) -> Any:
    if buffer is None:
        return None
    if id(buffer) not in known:
        known[id(buffer)] = buffer.detach().clone()
    return known[id(buffer)]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``, ``DataParallel`` and the like."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
