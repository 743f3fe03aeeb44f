"""Load a model by name, with its preprocessing and the names of its classes."""

from whence.models.loaded import LoadedModel, PreparedBatch, find_device, load, load_language_model

__all__ = ["LoadedModel", "PreparedBatch", "find_device", "load", "load_language_model"]
