"""Leave out parts of rich that the command line does not use, as they take long to import.

Typer imports rich's Markdown and its tracebacks to show any help, with the libraries that these
need: more than all else that a help is made of. Help of whence is no Markdown, and its errors are
sentences.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_LEFT_OUT = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


class _RealOnUse(type):
    """A class in the place of one that is not imported yet: whatever is done with it imports it."""

    home: str

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls._import()(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._import(), name)

    def _import(cls) -> Any:
        return getattr(importlib.import_module(cls.home), cls.__name__)


@contextmanager
def _put_off(classes: dict[str, str]) -> Iterator[None]:
    """Let imports of these classes, by their modules, find others that import them on use."""
    missing = {home: name for home, name in classes.items() if home not in sys.modules}
    for home, name in missing.items():
        module = ModuleType(home)
        setattr(module, name, _RealOnUse(name, (), {"home": home}))
        sys.modules[home] = module
    try:
        yield
    finally:
        for home in missing:
            del sys.modules[home]


def import_help() -> None:
    """Import what shows help, without the parts of rich that it does not need."""
    try:
        with _put_off(_LEFT_OUT):
            importlib.import_module("typer.rich_utils")
    except ImportError:  # another version of Typer, which imports what it needs by itself
        sys.modules.pop("typer.rich_utils", None)
