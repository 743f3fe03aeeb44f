"""Renders the page's HTML by templates. Scripts in `static` draw what data- attributes hold."""

from __future__ import annotations

import io
import uuid
from collections.abc import Sequence

import numpy as np
from PIL import Image

from whence import methods
from whence._util.outlines import trace_outlines
from whence._util.text import data_uri
from whence.explanation import Explanation, Generation, PeakRegion, Photo
from whence.explanation.regions import find_regions
from whence.inputs.sources import Kind
from whence.render import list_colormaps
from whence.render.colors import Floats
from whence.render.generation import make_view
from whence.render.overlay import is_signed, scale_to_largest, stretch_contrast, to_finite_array
from whence.render.sentences import describe_evidence
from whence.render.strengths import list_strengths
from whence.render.templates import render_macro, render_template
from whence.render.words import Word, list_words
from whence.web.service import MethodResult, Prediction

_RESULTS = "web/templates/results.html.j2"
_SHOWN_CLASSES = 5
_CONTRAST = (
    "What speaks for the first more than for the second; what speaks for both drops out. Where "
    "there are two colours, orange is for the first and blue for the second."
)


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
    classes, loaded = prediction.classes[:_SHOWN_CLASSES], prediction.loaded
    name = prediction.key[0]
    return render_fragment("probabilities", classes, prediction.notes, name, loaded.knows)


def render_results(
    results: Sequence[MethodResult],
    photo: Photo | None,
    plain: Sequence[MethodResult] = (),
    is_contrast: bool = False,
) -> str:
    """Explanations by methods and classes: maps over a photo, or the words of a text.

    Args:
        results: One for each method.
        photo: The photo; None for a text.
        plain: Where classes are explained against another one: each of them by itself.
        is_contrast: Whether classes are explained against another one.
    """
    alone = {one.method: one.explanation for one in plain}
    blocks = [_describe(one, alone.get(one.method), is_contrast) for one in results]
    if photo is None:
        return str(render_macro(_RESULTS, "texts", blocks))
    return str(render_macro(_RESULTS, "maps", style_photo(photo), photo.has_crop, blocks))


def render_generation(generation: Generation) -> str:
    """A generated text in which one points at a word to see what it came from."""
    return _render_generation(generation, "")


def render_contrast(generation: Generation) -> str:
    """One generated token, in the text, explained rather than another one."""
    (token,) = generation.classes()
    return _render_generation(generation, token.name)


def list_cells(explanation: Explanation) -> list[dict[str, object]]:
    """The variables of each explained class in a template: a map or words."""
    describe = _describe_text if explanation.picture_grid is None else _describe_map
    return [describe(explanation, number) for number in range(len(explanation.classes()))]


def style_photo(photo: Photo | None) -> str:
    """The photo as variables of CSS; nothing for a text.

    Where the model saw a part only, the whole photo and the place of that part are given, too.
    """
    if photo is None:
        return ""
    style = (
        f"--photo:url({_encode_jpeg(photo.crop)});--ratio:{photo.crop.width}/{photo.crop.height}"
    )
    if not photo.has_crop:
        return style
    width, height = photo.image.size
    left, top, right, bottom = photo.box
    return (
        f"{style};--whole:url({_encode_jpeg(photo.image)});--whole-ratio:{width}/{height};"
        f"--left:{100 * left / width:.3f}%;--top:{100 * top / height:.3f}%;"
        f"--width:{100 * (right - left) / width:.3f}%;--height:{100 * (bottom - top) / height:.3f}%"
    )


def _render_generation(generation: Generation, title: str) -> str:
    template, mark = "web/templates/generation.html.j2", uuid.uuid4().hex
    view = make_view(generation, 0, "word")
    return str(render_template(template, view=view, mark=mark, title=title, generation=generation))


def _describe(
    result: MethodResult, alone: Explanation | None, is_contrast: bool
) -> dict[str, object]:
    """The variables of one method in a template."""
    explanation = result.explanation
    is_known = result.method in methods.available()
    return {
        "result": result,
        "summary": methods.describe(result.method).summary if is_known else "",
        "note": explanation.class_note if explanation is not None else "",
        "cells": list_cells(explanation) if explanation is not None else [],
        "contrast": _CONTRAST if is_contrast else "",
        "alone": list_cells(alone) if alone is not None else [],
    }


def _describe_map(explanation: Explanation, number: int) -> dict[str, object]:
    grid, explained = explanation.picture_grid or (1, 1), explanation.classes()[number]
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
        "strength": f"{list_strengths(explanation)[number]:.3f}",
        "outlines": _trace(find_regions(scores)),
        "sentence": _tell(explanation, number),
    }


def _describe_text(explanation: Explanation, number: int) -> dict[str, object]:
    explained = explanation.classes()[number]
    return {
        "class": explained,
        "words": list_words(explanation, 0, number),
        "tokens": _list_tokens(explanation, explained.scores),
        "sentence": _tell(explanation, number),
    }


def _tell(explanation: Explanation, number: int) -> str:
    """Where the evidence for a class is, in a sentence; empty where that is not clear."""
    evidence = describe_evidence(explanation, target=number)
    return f"{evidence[:1].upper()}{evidence[1:]}." if evidence else ""


def _list_tokens(explanation: Explanation, scores: Floats) -> list[Word]:
    if explanation.tokens is None:
        return []
    values = to_finite_array(scores)
    triples = zip(explanation.tokens.strings[0], values, scale_to_largest(values), strict=True)
    return [Word(text, float(score), float(share), True) for text, score, share in triples]


def _trace(regions: Sequence[PeakRegion]) -> str:
    """The outlines of regions as a path of SVG, in a picture of 100 times 100."""
    outlines = [one for region in regions for one in trace_outlines(region.mask)]
    corners = [" ".join(f"{100 * x:.2f} {100 * y:.2f}" for x, y in one) for one in outlines]
    return "".join(f"M{one}Z" for one in corners)


def _encode_jpeg(image: Image.Image) -> str:
    content = io.BytesIO()
    image.convert("RGB").save(content, "JPEG", quality=88)
    return data_uri(content.getvalue(), "image/jpeg")


def _format_numbers(values: Floats) -> str:
    return " ".join(f"{value:.4g}" for value in values.ravel())
