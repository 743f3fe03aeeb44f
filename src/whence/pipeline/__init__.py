"""Many inputs explained in one go, in batches, with a file for each result."""

from whence.pipeline.explain import Explained, How, explained
from whence.pipeline.run import Request, Result, run

__all__ = ["Explained", "How", "Request", "Result", "explained", "run"]
