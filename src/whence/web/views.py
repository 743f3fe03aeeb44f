"""Renders the page's HTML by templates. Scripts in `static` draw what data- attributes hold."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from whence import methods
from whence._util.text import data_uri, to_printable
from whence.explanation import ExplainedClass, Explanation, Generation
from whence.faithfulness import Faithfulness, MethodCurves
from whence.faithfulness.result import CurveOrder
from whence.inputs.sources import Kind
from whence.render import list_colormaps
from whence.render.colors import Bytes, Floats
from whence.render.generation import make_view
from whence.render.overlay import is_signed, scale_to_largest, stretch_contrast, to_finite_array
from whence.render.templates import render_macro, render_template
from whence.render.words import Word, find_spaces, list_words
from whence.web.attention_heads import HeadAttention, pick_distinct_colors
from whence.web.service import MethodResult, Prediction

_RESULTS = "web/templates/results.html.j2"
_SHOWN_CLASSES = 5

# Lists the variables of each class in a template.
_ListCells = Callable[[Explanation], list[dict[str, object]]]


def render_fragment(name: str, *arguments: object) -> str:
    """A piece of the page, by the name of its macro: a heading, a note, controls, ..."""
    return str(render_macro("web/templates/fragments.html.j2", name, *arguments))


def render_controls(kind: Kind) -> str:
    """The controls that change how explanations are drawn."""
    if kind == "image":
        return render_fragment("image_controls", list_colormaps())
    return render_fragment("text_controls")


def render_probabilities(prediction: Prediction) -> str:
    """The most probable classes, each with a bar."""
    return render_fragment("probabilities", prediction.classes[:_SHOWN_CLASSES], prediction.notes)


def render_results(results: Sequence[MethodResult], photo: Image.Image | None) -> str:
    """Explanations by methods and classes: maps over a photo, or the words of a text."""
    if photo is None:
        blocks = [_describe(result, _list_texts) for result in results]
        return str(render_macro(_RESULTS, "texts", blocks))
    blocks = [_describe(result, _list_maps) for result in results]
    return str(render_macro(_RESULTS, "maps", _style_photo(photo), blocks))


def render_generation(generation: Generation) -> str:
    """A generated text in which one points at a word to see what it came from."""
    return _render_generation(generation, "")


def render_contrast(generation: Generation) -> str:
    """One generated token, in the text, explained rather than another one."""
    (token,) = generation.classes()
    return _render_generation(generation, token.name)


def render_faithfulness(
    faithfulness: Faithfulness,
    photo: Image.Image | None,
    failed: Sequence[MethodResult],
    is_contrast: bool = False,
) -> str:
    """The deletion curves of each class, the best method, and the input at each step.

    `is_contrast` says that classes are watched against another one.
    """
    classes = [_describe_curves(faithfulness, target) for target in faithfulness.targets]
    template, style = "web/templates/faithfulness.html.j2", _style_photo(photo)
    variables = {"failed": failed, "classes": classes, "is_contrast": is_contrast}
    return str(render_template(template, photo_style=style, **variables))


def render_heads(attention: HeadAttention, photo: Image.Image | None) -> str:
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
    template, style = "web/templates/heads.html.j2", _style_photo(photo)
    token = attention.names[attention.token]
    return str(render_template(template, photo_style=style, data=json.dumps(data), token=token))


def _render_generation(generation: Generation, title: str) -> str:
    template, mark = "web/templates/generation.html.j2", uuid.uuid4().hex
    view = make_view(generation, 0, "word")
    return str(render_template(template, view=view, mark=mark, title=title, notes=generation.notes))


def _describe(result: MethodResult, list_cells: _ListCells) -> dict[str, object]:
    """The variables of one method in a template."""
    explanation = result.explanation
    is_known = result.method in methods.available()
    return {
        "result": result,
        "summary": methods.describe(result.method).summary if is_known else "",
        "note": explanation.class_note if explanation is not None else "",
        "cells": list_cells(explanation) if explanation is not None else [],
    }


def _list_maps(explanation: Explanation) -> list[dict[str, object]]:
    return [_describe_map(explanation, one) for one in explanation.classes()]


def _describe_map(explanation: Explanation, explained: ExplainedClass) -> dict[str, object]:
    grid = explanation.picture_grid or (1, 1)
    scores = explained.scores.reshape(grid)
    row, column = np.unravel_index(np.abs(scores).argmax(), grid)
    strongest = f"row {row + 1}, column {column + 1}"
    return {
        "class": explained,
        "description": f"{explanation.method} for {explained.name}: strongest in {strongest}",
        "rows": grid[0],
        "columns": grid[1],
        "signed": is_signed(scores),
        "scores": _format_numbers(scores),
        "shares": _format_numbers(stretch_contrast(scores)),
    }


def _list_texts(explanation: Explanation) -> list[dict[str, object]]:
    return [
        {
            "class": one,
            "words": list_words(explanation, 0, number),
            "tokens": _list_tokens(explanation, one.scores),
        }
        for number, one in enumerate(explanation.classes())
    ]


def _list_tokens(explanation: Explanation, scores: Floats) -> list[Word]:
    if explanation.tokens is None:
        return []
    values = to_finite_array(scores)
    triples = zip(explanation.tokens.strings[0], values, scale_to_largest(values), strict=True)
    return [Word(text, float(score), float(share), True) for text, score, share in triples]


def _describe_curves(faithfulness: Faithfulness, target: int) -> dict[str, object]:
    """The variables of one class in a template."""
    ranking = faithfulness.rank_methods(target)
    # By name, so that a method has one colour, whatever its rank for a class.
    names = sorted(one.method for one in ranking)
    colors = dict(zip(names, pick_distinct_colors(len(names)), strict=True))
    curves = [{"color": colors[one.method], **_encode_curves(faithfulness, one)} for one in ranking]
    return {
        "name": ranking[0].class_name,
        "curves": json.dumps(curves),
        "best": faithfulness.find_best(target),
        "ranking": ranking,
    }


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


def _style_photo(photo: Image.Image | None) -> str:
    """The photo as variables of CSS; nothing for a text."""
    if photo is None:
        return ""
    content = io.BytesIO()
    photo.convert("RGB").save(content, "JPEG", quality=88)
    uri = data_uri(content.getvalue(), "image/jpeg")
    return f"--photo:url({uri});--ratio:{photo.width}/{photo.height}"


def _encode_png(values: Bytes) -> str:
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG", optimize=True)
    return data_uri(content.getvalue(), "image/png")


def _format_numbers(values: Floats) -> str:
    return " ".join(f"{value:.4g}" for value in values.ravel())
