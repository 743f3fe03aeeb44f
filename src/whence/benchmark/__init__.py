"""Benchmarks: `run` judges methods on a dataset, and writes a table, a chart and a page."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whence.benchmark.output import BenchmarkResult
    from whence.benchmark.protocols import PROTOCOLS, BenchmarkProtocol, build_protocol
    from whence.benchmark.runner import run
    from whence.benchmark.table import BenchmarkTable
    from whence.methods import MethodSpecification, parse_methods

# Imported at first use: the command line lists protocols without torch.
_MODULES = {
    "BenchmarkProtocol": "whence.benchmark.protocols",
    "BenchmarkResult": "whence.benchmark.output",
    "BenchmarkTable": "whence.benchmark.table",
    "MethodSpecification": "whence.methods",
    "PROTOCOLS": "whence.benchmark.protocols",
    "build_protocol": "whence.benchmark.protocols",
    "parse_methods": "whence.methods",
    "run": "whence.benchmark.runner",
}

__all__ = [
    "PROTOCOLS",
    "BenchmarkProtocol",
    "BenchmarkResult",
    "BenchmarkTable",
    "MethodSpecification",
    "build_protocol",
    "parse_methods",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'whence.benchmark' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
