"""Load a model by name, with its preprocessing and the names of its classes."""

from __future__ import annotations

from pathlib import Path

import torch

from whence._util.text import first_line
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.models.loaded import LoadedModel
from whence.models.prepared import PreparedBatch

__all__ = ["EMBEDDED", "LoadedModel", "PreparedBatch", "load"]

_DEMO = Path(__file__).parents[1] / "demo"
EMBEDDED: dict[Kind, Path] = {"image": _DEMO / "pets", "text": _DEMO / "sentiment"}


def load(
    name: str | Path | None = None,
    kind: Kind | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    *,
    compile: bool = False,
    precision: str | None = None,
) -> LoadedModel:
    """Load a model, its preprocessing and the names of its classes.

    Args:
        name: A folder that transformers saved to; a name on the hub; ``timm:NAME``;
            ``torchvision:NAME``; or None for the embedded model that suits the kind of input.
        kind: ``"image"`` or ``"text"``. Needed only for an embedded model; otherwise a model of
            another kind is an error.
        weights: A safetensors file, for models of timm and torchvision.
        device: Where to run, such as ``"cpu"`` or ``"cuda"``; the best there is if left out.
        compile: Whether to compile explanations, as `Explainer` does.
        precision: Of matrix products: ``"tf32"`` on a GPU, or ``"bfloat16"``.

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
        loaded = _load_embedded(kind)
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
    loaded.device, loaded.compile, loaded.precision = place, compile, precision
    _ = loaded.explainer  # built at once, since it refuses an unknown precision
    return loaded


def _load_embedded(kind: Kind | None) -> LoadedModel:
    from whence.models import transformers_models

    if kind is None:
        raise WhenceError("Name a model, or say for which kind of input: 'image' or 'text'.")
    folder = EMBEDDED[kind]
    if not folder.is_dir():
        raise WhenceError(f"This installation carries no model for {kind}s; name one.")
    return transformers_models.load(folder)


def find_device(name: str | None) -> torch.device:
    """Find a device by name; without one, the GPU if there is one, and otherwise the CPU.

    Raises:
        WhenceError: There is no such device here.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise WhenceError(f"There is no device '{name}' here: {first_line(error)}.") from None
    if device.type == "meta":
        raise WhenceError("The device 'meta' computes nothing.")
    return device
