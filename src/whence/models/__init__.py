"""Load a model by name, with its preprocessing and the names of its classes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.models.loaded import (
        LoadedModel,
        PreparedBatch,
        find_device,
        load,
        load_language_model,
    )
    from whence.models.pair_loading import compare_with
    from whence.models.wrapping import ModelObject, resolve, wrap

# Imported when first asked for: which models there are can be told without torch.
_HOMES = {
    "LoadedModel": "loaded",
    "ModelObject": "wrapping",
    "PreparedBatch": "loaded",
    "compare_with": "pair_loading",
    "find_device": "loaded",
    "load": "loaded",
    "load_language_model": "loaded",
    "resolve": "wrapping",
    "wrap": "wrapping",
}

__all__ = [
    "LoadedModel",
    "ModelObject",
    "PreparedBatch",
    "compare_with",
    "find_device",
    "load",
    "load_language_model",
    "resolve",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES.values():
        return importlib.import_module(f"whence.models.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'whence.models' has no attribute '{name}'")
    return getattr(importlib.import_module(f"whence.models.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
