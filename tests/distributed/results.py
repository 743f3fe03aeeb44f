"""Runs over a few inputs, for tests of their results."""

from pathlib import Path

from whence.distributed import ResultFolder, RunSettings
from whence.distributed.run import run_many
from whence.methods import parse_methods
from whence.pipeline import ExplainSettings


def explain_many(arguments, out, method="tiba", part_rows=2, **how) -> ResultFolder:
    """Explain inputs to a folder of results, as `whence explain --format parquet` does."""
    how = {key: str(value) if isinstance(value, Path) else value for key, value in how.items()}
    settings = ExplainSettings(methods=tuple(parse_methods(method)), **how)
    run_many([str(one) for one in arguments], RunSettings(settings, part_rows=part_rows), out)
    return ResultFolder(out)
