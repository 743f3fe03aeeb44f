"""Benchmarks: `run` judges methods by a protocol, `run_suite` by several on several models."""

from whence.benchmark.output import BenchmarkResult
from whence.benchmark.overview import Overview, OverviewResult, write_overview
from whence.benchmark.protocols import PROTOCOLS, BenchmarkProtocol, build_protocol
from whence.benchmark.protocols.parsing import parse_protocols
from whence.benchmark.runner import run
from whence.benchmark.suite import SuiteResult, run_suite
from whence.benchmark.table import BenchmarkTable
from whence.methods import MethodSpecification, parse_methods

__all__ = [
    "PROTOCOLS",
    "BenchmarkProtocol",
    "BenchmarkResult",
    "BenchmarkTable",
    "MethodSpecification",
    "Overview",
    "OverviewResult",
    "SuiteResult",
    "build_protocol",
    "parse_methods",
    "parse_protocols",
    "run",
    "run_suite",
    "write_overview",
]
