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
    copies: dict[int, nn.Module] = {}
    for module in model.modules():
        copy = module.__new__(type(module))
        # Registries of parameters, submodules and hooks are dictionaries: copied, not shared.
        copy.__dict__ = {
            name: value.copy() if name.startswith("_") and isinstance(value, dict) else value
            for name, value in module.__dict__.items()
        }
        copy.__dict__["training"] = False
        copy._buffers = {name: _copied(buffer, buffers) for name, buffer in module._buffers.items()}
        copies[id(module)] = copy
    for copy in copies.values():
        copy._modules = {n: m if m is None else copies[id(m)] for n, m in copy._modules.items()}
    return copies[id(model)]


def _copied(buffer: Any, known: dict[int, torch.Tensor]) -> Any:
    if buffer is None:
        return None
    if id(buffer) not in known:
        known[id(buffer)] = buffer.detach().clone()
    return known[id(buffer)]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``, ``DataParallel`` and the like."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model
