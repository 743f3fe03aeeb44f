"""Draw names of samples by a seed, and turn texts into names of files."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence


def draw_names(names: Sequence[str], limit: int | None, seed: int) -> list[str]:
    """Draw some of the names at random, fixed by the seed and the names, in their own order."""
    if limit is None or limit >= len(names):
        return list(names)
    listed = hashlib.sha256("\0".join([str(seed), *sorted(names)]).encode("utf-8", "replace"))
    chosen = set(random.Random(listed.digest()).sample(sorted(names), limit))
    return [name for name in names if name in chosen]


def to_file_name(text: str) -> str:
    """Turn a text into a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text).strip("-.")[-60:].strip("-.") or "unnamed"
