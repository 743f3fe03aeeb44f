"""The overview of benchmark runs: ranks, how criteria agree, where the best is beaten."""

from whence.benchmark.overview.summary import Overview, summarize_runs
from whence.benchmark.overview.writing import OverviewResult, write_overview

__all__ = ["Overview", "OverviewResult", "summarize_runs", "write_overview"]
