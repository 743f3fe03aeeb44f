"""Finding and loading a model by name, with all that its inputs must go through."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.models.loaded import LoadedModel, Prepared

__all__ = ["EMBEDDED", "LoadedModel", "Prepared", "load"]

_DEMO = Path(__file__).parents[1] / "demo"
EMBEDDED: dict[Kind, Path] = {"image": _DEMO / "pets", "text": _DEMO / "sentiment"}


def load(
    name: str | Path | None = None,
    kind: Kind | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    *,
    fast: bool = False,
    precision: str | None = None,
) -> LoadedModel:
    """Load a model, its preparation of inputs and the names of its classes.

    Args:
        name: A folder that transformers saved to; a name on the hub; ``timm:NAME``;
            ``torchvision:NAME``; or None for the embedded model that suits the kind of input.
        kind: ``"image"`` or ``"text"``. Needed only to choose an embedded model; otherwise the
            model tells, and must agree.
        weights: A safetensors file, for models of timm and torchvision.
        device: Where to run, such as ``"cpu"`` or ``"cuda"``; the best there is if left out.
        fast: Whether to compile what is done to batches of one shape, as `Explainer` does.
        precision: In what matrix products are computed: ``"tf32"`` on a GPU, or ``"bfloat16"``.

    Raises:
        WhenceError: There is no such model, or it cannot be used.
    """
    place = find_device(device)
    if precision == "tf32" and place.type == "cpu":
        raise WhenceError(
            "The precision tf32 is one of GPUs, and the model is to run on a CPU; leave it out, or "
            "give bfloat16."
        )
    library, _, rest = str(name or "").partition(":")
    if weights is not None and library not in ("timm", "torchvision"):
        raise WhenceError("A weights file is for timm:NAME and torchvision:NAME only.")
    if name is None:
        loaded = _embedded(kind)
    elif library == "timm":
        from whence.models import timm_models

        loaded = timm_models.load(rest, weights)
    elif library == "torchvision":
        from whence.models import torchvision_models

        loaded = torchvision_models.load(rest, weights)
    else:
        from whence.models import transformers_models

        loaded = transformers_models.load(name)
    if kind is not None and kind != loaded.kind:
        raise WhenceError(f"The model '{loaded.name}' explains {loaded.kind}s, not {kind}s.")
    loaded.model.to(place).eval()
    return dataclasses.replace(loaded, device=place, fast=fast, precision=precision)


def _embedded(kind: Kind | None) -> LoadedModel:
    from whence.models import transformers_models

    if kind is None:
        raise WhenceError("Name a model, or say for which kind of input: 'image' or 'text'.")
    folder = EMBEDDED[kind]
    if not folder.is_dir():
        raise WhenceError(f"This installation carries no model for {kind}s; name one.")
    return transformers_models.load(folder)


def find_device(name: str | None) -> torch.device:
    """A device by name.

    Raises:
        WhenceError: There is no such device here.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise WhenceError(f"There is no device '{name}' here: {reason}.") from None
    if device.type == "meta":
        raise WhenceError("The device 'meta' computes nothing.")
    return device
