"""Methods beside each other on a dataset: `run` judges them and writes tables, curves, a page."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.benchmark.protocols import PROTOCOLS, Protocol, build
    from whence.benchmark.runner import Outcome, run
    from whence.benchmark.table import Table
    from whence.methods.specification import Chosen, choose

# Imported when first asked for: the command line names protocols without torch.
_HOMES = {
    "Chosen": "whence.methods.specification",
    "Outcome": "whence.benchmark.runner",
    "PROTOCOLS": "whence.benchmark.protocols",
    "Protocol": "whence.benchmark.protocols",
    "Table": "whence.benchmark.table",
    "build": "whence.benchmark.protocols",
    "choose": "whence.methods.specification",
    "run": "whence.benchmark.runner",
}

__all__ = ["PROTOCOLS", "Chosen", "Outcome", "Protocol", "Table", "build", "choose", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'whence.benchmark' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
