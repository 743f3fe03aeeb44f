"""Requests to detection and dense models, whose own decision is a box, or the places of a class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from whence.targets import Target
from whence.targets.asked import read_count
from whence.targets.boxes import BoxTarget
from whence.targets.classes import is_one_class
from whence.targets.dense import PixelTarget
from whence.tracing import unwrap_model

# What models do, by the ends of the names of transformers' classes.
DENSE_TASKS = {
    "ObjectDetection": "detects objects in photos",
    "SemanticSegmentation": "segments photos",
    "InstanceSegmentation": "segments photos",
    "UniversalSegmentation": "segments photos",
    "DepthEstimation": "estimates the depth of photos",
}


def find_dense_task(model: nn.Module) -> str | None:
    """Find what a detection or dense model of transformers does: a key of `DENSE_TASKS`."""
    name = type(unwrap_model(model)).__name__
    return next((task for task in DENSE_TASKS if name.endswith(f"For{task}")), None)


def aim_at_places(model: nn.Module, request: Mapping[str, Any]) -> dict[str, Any]:
    """Make boxes, or the places of classes, of the classes that a request names.

    Args:
        model: Any model.
        request: What was asked for: None is the most confident box, or the class of most places;
            a class its most confident box, or all its places; a number k of classes, the first k.

    Returns:
        The request; unchanged for other models, and for targets that are no classes.
    """
    asked, task = dict(request), find_dense_task(model)
    if task is None:
        return asked
    first: BoxTarget | PixelTarget = PixelTarget(None, None)
    if task == "ObjectDetection":
        first = BoxTarget(None, None)
    classes = asked.get("classes")
    if classes is None:
        asked["target"] = _make_target(first, asked.get("target"))
    elif (count := read_count(classes)) is not None:
        asked["classes"] = [replace(first, rank=rank) for rank in range(count)]
    else:
        listed = [classes] if isinstance(classes, str) else classes
        asked["classes"] = [_make_target(first, one) for one in listed]
    return asked


def _make_target(first: BoxTarget | PixelTarget, label: Any) -> Target | Callable[..., Any]:
    is_class = not isinstance(label, Target) and not callable(label) and is_one_class(label)
    target: Target = replace(first, label=label) if is_class else label
    return target
