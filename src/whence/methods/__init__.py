"""The methods, by name. Every module here is a method and registers itself; `parts` is shared."""

import importlib
import pkgutil

from whence.methods.registry import (
    Description,
    Method,
    available,
    build,
    describe,
    get,
    parse,
    register,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Description",
    "Method",
    "available",
    "build",
    "describe",
    "get",
    "parse",
    "register",
]
