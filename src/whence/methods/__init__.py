"""The methods, by name. Every module of this package is a method and registers itself."""

import importlib
import pkgutil

from whence.methods.registry import Method, available, build, get, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Method", "available", "build", "get", "register"]
