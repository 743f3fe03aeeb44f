"""Hashes and versions that tell whether two runs had the same model, data and software."""

from __future__ import annotations

import hashlib
import platform

import torch
from torch import nn

from whence.version import __version__


def hash_weights(model: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            continue
        values = value.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_texts(*texts: str) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:12]


def list_versions() -> dict[str, str]:
    """The versions of whence, torch, transformers and Python."""
    import transformers

    return {
        "whence": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
