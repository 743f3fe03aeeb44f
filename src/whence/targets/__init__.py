"""What is explained: a class, by index, by name or by the model's own ranking."""

from whence.targets.classes import class_names_of, index_of, of_samples, resolve

__all__ = ["class_names_of", "index_of", "of_samples", "resolve"]
