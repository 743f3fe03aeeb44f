"""Load a model by name, with its preprocessing and the names of its classes."""

from whence.models.loaded import LoadedModel, PreparedBatch, find_device, load, load_language_model
from whence.models.pair_loading import compare_with
from whence.models.wrapping import ModelObject, resolve, wrap

__all__ = [
    "LoadedModel",
    "ModelObject",
    "PreparedBatch",
    "compare_with",
    "find_device",
    "load",
    "load_language_model",
    "resolve",
    "wrap",
]
