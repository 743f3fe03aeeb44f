"""Explanations inside pipelines of Ray Data: a class for `Dataset.map_batches`."""

from whence.ray.explain import Explain

__all__ = ["Explain"]
