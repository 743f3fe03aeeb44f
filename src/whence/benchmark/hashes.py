"""Which samples are drawn, and names of files."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence


def drawn(names: Sequence[str], limit: int | None, seed: int) -> list[str]:
    """A random part of the names, fixed by the seed and the names, in their own order."""
    if limit is None or limit >= len(names):
        return list(names)
    listed = hashlib.sha256("\0".join([str(seed), *sorted(names)]).encode("utf-8", "replace"))
    kept = set(random.Random(listed.digest()).sample(sorted(names), limit))
    return [name for name in names if name in kept]


def slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text).strip("-.")[-60:].strip("-.") or "unnamed"
