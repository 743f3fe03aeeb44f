"""Runs over many inputs: rows of Parquet in a folder, on one machine or a cluster."""

from whence.distributed.contents import Item
from whence.distributed.folder import ResultFolder
from whence.distributed.row_explainer import RowExplainer
from whence.distributed.settings import RunDescription, RunSettings, describe_run

__all__ = ["Item", "ResultFolder", "RowExplainer", "RunDescription", "RunSettings", "describe_run"]
