"""Read weights from a safetensors file, never from a pickle, and load them into a model."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from whence._util.files import is_file
from whence._util.near_names import suggest_paths
from whence.errors import WhenceError


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file."""
    path = Path(path)
    if not is_file(path):
        raise WhenceError(f"There is no weights file '{path}'.{suggest_paths(path)}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        hint = ""
        if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".tar"):
            hint = " Pickled weights can run code when they are opened, so whence does not."
        raise WhenceError(f"'{path}' is not a safetensors file, or is damaged.{hint}") from error


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Load weights into a model, and refuse those of another model."""
    own = model.state_dict()
    missing = sorted(own.keys() - tensors.keys())
    foreign = sorted(tensors.keys() - own.keys())
    shapes = [n for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape]
    for names, what in ((missing, "lacks"), (foreign, "has"), (sorted(shapes), "differs in")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise WhenceError(
                f"'{path}' holds the weights of another model: it {what} '{names[0]}'{more}."
            )
    model.load_state_dict(tensors)


def count_classes(tensors: dict[str, Tensor], classifier: str, default: int) -> int:
    """Count the classes that weights are for, by the bias or the weight of the classifier."""
    for name in (f"{classifier}.bias", f"{classifier}.weight"):
        if name in tensors:
            return len(tensors[name])
    return default
