"""The name of a model to show beside its explanations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whence._util.files import is_folder

_EMBEDDED = Path(__file__).parents[1] / "demo"


def shorten_model_name(name: str) -> str:
    """The name of a folder without the path to it, which is private; other names as they are.

    Of a model that comes with whence it says so.
    """
    path = Path(name)
    if path.parent == _EMBEDDED:
        return f"{path.name} (embedded)"
    return path.resolve().name if path.is_absolute() or is_folder(path) else name


def find_model_name(model: object) -> str:
    """Find the name of a model object: the one it was loaded by, or that of its class."""
    loaded_as = getattr(getattr(model, "config", None), "_name_or_path", None)
    if isinstance(loaded_as, str) and loaded_as:
        return shorten_model_name(loaded_as)
    config = getattr(model, "pretrained_cfg", None)
    architecture = config.get("architecture") if isinstance(config, Mapping) else None
    return f"timm:{architecture}" if architecture else type(model).__name__
