"""Benchmarks: `run` judges methods on a dataset, and writes a table, a chart and a page."""

from whence.benchmark.output import BenchmarkResult
from whence.benchmark.protocols import PROTOCOLS, BenchmarkProtocol, build_protocol
from whence.benchmark.protocols.parsing import parse_protocols
from whence.benchmark.runner import run
from whence.benchmark.table import BenchmarkTable
from whence.methods import MethodSpecification, parse_methods

__all__ = [
    "PROTOCOLS",
    "BenchmarkProtocol",
    "BenchmarkResult",
    "BenchmarkTable",
    "MethodSpecification",
    "build_protocol",
    "parse_methods",
    "parse_protocols",
    "run",
]
