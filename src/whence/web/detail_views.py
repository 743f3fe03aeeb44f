"""Renders the HTML of details by templates: methods compared on one input, and attention heads."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from whence._util.text import data_uri, format_probability, to_printable
from whence.explanation import Explanation, Photo
from whence.faithfulness import Faithfulness, MethodCurves
from whence.faithfulness.result import CurveOrder
from whence.render.colors import Bytes, Floats
from whence.render.overlay import scale_to_largest
from whence.render.templates import render_template
from whence.render.words import find_spaces
from whence.web.attention_heads import HeadAttention, pick_distinct_colors
from whence.web.service import MethodResult
from whence.web.views import list_cells, style_photo

# The step that sentences speak of: 30 % removed.
_TOLD_STEP = 3


def render_faithfulness(
    faithfulness: Faithfulness,
    photo: Photo | None,
    results: Sequence[MethodResult],
    is_contrast: bool = False,
) -> str:
    """Methods as rows: the map or words, the curves, and a sentence; for each class.

    `results` are the explanations that were measured, and those that failed. `is_contrast` says
    that classes are watched against another one.
    """
    explanations = {one.method: one.explanation for one in results if one.explanation is not None}
    classes = [
        _describe_class(faithfulness, explanations, number, target)
        for number, target in enumerate(faithfulness.targets)
    ]
    return str(
        render_template(
            "web/templates/faithfulness.html.j2",
            photo_style=style_photo(photo),
            what="text" if photo is None else "photo",
            failed=[one for one in results if one.error],
            classes=classes,
            is_contrast=is_contrast,
        )
    )


def render_heads(attention: HeadAttention, photo: Photo | None) -> str:
    """A contact sheet of all heads, and a picture of one layer in which each head has a colour."""
    most = max((len(heads) for heads in attention.weights), default=0)
    data = {
        "grid": attention.grid,
        "colors": pick_distinct_colors(most) if most else [],
        "layers": attention.layers,
        "names": attention.names if attention.grid is None else None,
        "weights": [[_encode_weights(head) for head in heads] for heads in attention.weights],
        "largest": [[float(f"{head.max():.3g}") for head in heads] for heads in attention.weights],
    }
    template, style = "web/templates/heads.html.j2", style_photo(photo)
    token = attention.names[attention.token]
    return str(render_template(template, photo_style=style, data=json.dumps(data), token=token))


def _describe_class(
    faithfulness: Faithfulness,
    explanations: Mapping[str, Explanation],
    number: int,
    target: int,
) -> dict[str, object]:
    """The variables of one class in a template; `number` counts the explained classes."""
    ranking = faithfulness.rank_methods(target)
    # By name, so that a method has one colour, whatever its rank for a class.
    names = sorted(one.method for one in ranking)
    colors = dict(zip(names, pick_distinct_colors(len(names)), strict=True))
    curves = [{"color": colors[one.method], **_encode_curves(faithfulness, one)} for one in ranking]
    return {
        "name": ranking[0].class_name,
        "curves": json.dumps(curves),
        "best": faithfulness.find_best(target),
        "rows": [
            {
                "method": one.method,
                "score": one.score,
                "sentence": _tell(one),
                "cell": list_cells(explanations[one.method])[number],
            }
            for one in ranking
        ],
    }


def _tell(one: MethodCurves) -> str:
    """What removal did to a class, in a sentence."""
    share = f"{one.steps[_TOLD_STEP]:.0%}"
    start, most, least = (
        format_probability(p) for p in (one.most[0], one.most[_TOLD_STEP], one.least[_TOLD_STEP])
    )
    return (
        f"With the {share} removed that it ranks highest, {one.class_name} goes from {start} to "
        f"{most}; with the lowest {share}, to {least}."
    )


def _encode_curves(faithfulness: Faithfulness, one: MethodCurves) -> dict[str, object]:
    """The curves of a method and a class, and the step at which each part is deleted, for JSON."""
    orders: list[CurveOrder] = ["most", "least"]
    if one.random is not None:
        orders.append("random")
    deletion_steps = {order: _find_deletion_steps(one, order) for order in orders}
    data: dict[str, object] = {
        "method": one.method,
        "steps": one.steps,
        "curves": {order: [round(p, 4) for p in one.get_curve(order)] for order in orders},
    }
    if faithfulness.words is None:
        masks = {order: _encode_png(steps) for order, steps in deletion_steps.items()}
        return data | {"masks": masks}
    words = [to_printable(word) for word in faithfulness.words]
    steps = {order: steps.tolist() for order, steps in deletion_steps.items()}
    return data | {"words": words, "spaces": find_spaces(words), "deletionSteps": steps}


def _find_deletion_steps(one: MethodCurves, order: CurveOrder) -> Bytes:
    """The first step at which each unit is deleted; the number of steps if never."""
    deleted = [one.get_mask(step, order).numpy() for step in range(len(one.steps))]
    steps: Bytes = (len(one.steps) - np.sum(deleted, 0)).astype(np.uint8)
    return steps


def _encode_weights(weights: Floats) -> str:
    """Attention relative to its maximum, one byte each, in base 64."""
    levels = np.round(255 * scale_to_largest(weights)).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode()


def _encode_png(values: Bytes) -> str:
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG", optimize=True)
    return data_uri(content.getvalue(), "image/png")
