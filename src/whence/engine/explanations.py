"""The explanation of a result: scores with the names of what they explain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from whence._util.model_name import find_model_name
from whence.engine.media import see_input
from whence.engine.request import Request, Result
from whence.explanation import Check, Explanation
from whence.methods.registry import resolve_alias
from whence.targets import AskedClasses, join_names
from whence.tracing import unwrap_model
from whence.version import __version__


def make_explanation(
    request: Request, result: Result, checks: list[Check], precision: str | None = None
) -> Explanation:
    """The explanation of one explained input.

    Args:
        request: What was asked for.
        result: What was computed.
        checks: What was verified.
        precision: Of matrix products, if it is not that of the weights.
    """
    method, layout = request.method, result.layout
    settings: dict[str, Any] = {"rules": request.rules.name} if method.propagates else {}
    settings |= {} if precision is None else {"precision": precision}
    # One target is a dimension of length 1, which the user did not ask for.
    one = request.asked.is_one
    chosen = (slice(None), 0 if one else slice(None))
    lengths = [request.arguments.main.shape[1 + axis] for axis in layout.axes[-2:]]
    names, seen = _name_targets(request, result), see_input(request, layout)
    return Explanation(
        scores=result.scores[chosen],
        target=result.classes[chosen],
        logits=result.logits,
        grid=layout.grid,
        axes=seen.axes,
        image_size=(lengths[0], lengths[1]) if len(lengths) == 2 else None,
        tokens=result.tokens,
        target_names=[name for (name,) in names] if one and names is not None else names,
        areas=_select_areas(request, result),
        multi_label=request.subject.multi_label,
        method=resolve_alias(request.method_name),
        class_specific=method.class_specific,
        settings=settings | dataclasses.asdict(method),  # type: ignore[call-overload]
        details=([detail for (detail,) in result.details] if one else result.details) or None,
        version=__version__,
        model=find_model_name(unwrap_model(request.subject.model)),
        checks=checks,
        values=None if result.values is None else result.values[chosen],
        probabilities=None if result.probabilities is None else result.probabilities[chosen],
        image_sizes=None if layout.grid is None else request.image_sizes,
        length=seen.length,
        media=seen.media,
        photos=seen.photos,
        evidence=result.evidence,
    )


def _select_areas(request: Request, result: Result) -> list[Any] | None:
    """Where targets lie, if what is explained is a picture."""
    if result.areas is None or request.arguments.main.dim() != 4:
        return None
    return [area for (area,) in result.areas] if request.asked.is_one else result.areas


def _name_targets(request: Request, result: Result) -> list[list[str]] | None:
    """Names of what is explained, for each sample and target; None if there are none."""
    if not isinstance(request.asked, AskedClasses):
        return result.target_names
    names = request.name_columns(result.columns, result.logits.shape[1])
    if not names and request.asked.against is None:
        return None
    named = _name_classes(result.classes, names)
    if request.asked.against is None:
        return named
    against = _name_classes(request.asked.resolve_against(result.logits, names), names)
    return [[join_names(one, b) for one in row] for row, (b,) in zip(named, against, strict=True)]


def _name_classes(classes: Tensor, names: Mapping[int, str]) -> list[list[str]]:
    return [[names.get(index, f"class {index}") for index in row] for row in classes.tolist()]
