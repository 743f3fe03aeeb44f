"""Many inputs explained in one go, in batches, with a file for each result."""

from whence.bulk.explaining import Explained, How, explained
from whence.bulk.run import Request, Result, run

__all__ = ["Explained", "How", "Request", "Result", "explained", "run"]
