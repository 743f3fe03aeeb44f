"""Targets of explanations: classes by index, by name or by the model's own ranking."""

from whence.targets.classes import (
    Classes,
    ClassTarget,
    find_class_index,
    find_class_names,
    resolve_classes,
    select_samples,
    to_probabilities,
)

__all__ = [
    "ClassTarget",
    "Classes",
    "find_class_index",
    "find_class_names",
    "resolve_classes",
    "select_samples",
    "to_probabilities",
]
