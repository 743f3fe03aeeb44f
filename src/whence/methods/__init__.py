"""The methods of explanation, one module each, found by name in the registry."""

import importlib
import pkgutil

from whence.methods.parsing import parse_methods, parse_option, parse_options
from whence.methods.registry import (
    Description,
    Method,
    MethodSpecification,
    available,
    build,
    describe,
    get,
    register,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Description",
    "Method",
    "MethodSpecification",
    "available",
    "build",
    "describe",
    "get",
    "parse_methods",
    "parse_option",
    "parse_options",
    "register",
]
