"""What makes two runs the same run: weights, versions, and which samples are drawn."""

from __future__ import annotations

import hashlib
import platform
import random
import re
from collections.abc import Sequence

import torch
from torch import nn

from whence.version import __version__


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values of all parameters and buffers."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            continue
        values = value.detach().cpu().contiguous()
        found.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        found.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    import transformers

    return {
        "whence": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def drawn(names: Sequence[str], limit: int | None, seed: int) -> list[str]:
    """A random part of the names, fixed by the seed and the names, in their own order."""
    if limit is None or limit >= len(names):
        return list(names)
    listed = hashlib.sha256("\0".join([str(seed), *sorted(names)]).encode("utf-8", "replace"))
    kept = set(random.Random(listed.digest()).sample(sorted(names), limit))
    return [name for name in names if name in kept]


def short_hash(*parts: str) -> str:
    """A few hexadecimal digits that tell texts apart."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


def slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text).strip("-.")[-60:].strip("-.") or "unnamed"
