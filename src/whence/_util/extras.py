"""Import libraries that only some features need, or say how to install them."""

from __future__ import annotations

import importlib
from typing import Any

from whence.errors import WhenceError


def import_extra(module: str, package: str, extra: str = "methods") -> Any:
    """Import a module of an optional library.

    Args:
        module: What to import.
        package: The name under which it is installed.
        extra: The extra of whence that brings it.

    Raises:
        WhenceError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WhenceError(
            f"This needs {package}, which is not installed: pip install 'whence[{extra}]'."
        ) from error
