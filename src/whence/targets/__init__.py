"""Targets: the scalars of a model's output that can be explained.

A target is a class (by index or name), or what one of these functions makes, or any function
``f(outputs, inputs) -> (batch,)``. With `against`, another target is subtracted: "why A and not B".
"""

from whence.targets.areas import TargetArea
from whence.targets.asked import (
    AnyTarget,
    AskedClasses,
    AskedScalars,
    SeveralTargets,
    parse_targets,
)
from whence.targets.base import Target, TargetContext, TokenSequence
from whence.targets.boxes import box
from whence.targets.classes import (
    Classes,
    ClassTarget,
    find_class_index,
    find_class_names,
    resolve_classes,
    select_samples,
    to_probabilities,
)
from whence.targets.dense import pixel
from whence.targets.scalars import (
    ClassScalars,
    Readout,
    ReadScalars,
    Scalars,
    has_contrast,
    join_names,
)
from whence.targets.similarity import similarity
from whence.targets.token_logits import SpanScalar, TokenScalar, find_token_logits
from whence.targets.tokens import span, token

__all__ = [
    "AnyTarget",
    "AskedClasses",
    "AskedScalars",
    "ClassScalars",
    "ClassTarget",
    "Classes",
    "ReadScalars",
    "Readout",
    "Scalars",
    "SeveralTargets",
    "SpanScalar",
    "Target",
    "TargetArea",
    "TargetContext",
    "TokenScalar",
    "TokenSequence",
    "box",
    "find_class_index",
    "find_class_names",
    "find_token_logits",
    "has_contrast",
    "join_names",
    "parse_targets",
    "pixel",
    "resolve_classes",
    "select_samples",
    "similarity",
    "span",
    "to_probabilities",
    "token",
]
