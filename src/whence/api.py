"""`explain`: load a model and explain a photo or a text in one call."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from whence._util.defaults import METHOD
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs import read_input
from whence.inputs.sources import Kind
from whence.models import LoadedModel, load
from whence.rules import RuleSet
from whence.targets import AnyTarget, SeveralTargets


def explain(
    what: object,
    model: str | Path | LoadedModel | None = None,
    target: AnyTarget | None = None,
    against: AnyTarget | None = None,
    classes: SeveralTargets | None = None,
    method: str = METHOD,
    rules: str | RuleSet = "stable",
    *,
    of: str | int | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    **options: Any,
) -> Explanation:
    """Load a model, prepare a photo or a text for it, and explain the model's decision.

    Args:
        what: A path, a PIL image, an array (height, width, 3) of uint8 or floats from 0 to 1, a
            text, or a list of these, which are explained as one batch. A string that names a file,
            or looks like a path, is a path.
        model: A folder, a name on the hub, ``timm:NAME``, ``torchvision:NAME``, what
            `whence.models.load` returned, or None for the embedded model that suits the input.
        target: What to explain: a class by index or name, or any of `whence.targets`; the model's
            own decision if left out.
        against: The same forms: why the target and not this one.
        classes: Instead of target, several targets, or a number k for the top k.
        method: Any of ``methods.available()``.
        rules: The relevance rules: any of ``rules.available()``, or a set of your own.
        of: Which of the model's inputs gets scores, by name; its main one if left out.
        weights: A safetensors file, for models of timm and torchvision.
        device: Where to run; the best there is if left out.
        **options: Other arguments of `Explainer.explain`: ``keep_evidence``, options of the method.

    Returns:
        The explanation, of a batch of one unless a list was given.

    Raises:
        WhenceError: Something is wrong with the input, the model or the request.

    Example:
        >>> explain("cat.jpg", target="cat").heatmap()  # doctest: +SKIP
        >>> explain("A wonderful film.").words()  # doctest: +SKIP
    """
    if isinstance(of, list | tuple):
        raise WhenceError(
            "Several inputs in `of` are for Explainer(model).explain(inputs, of=...)."
        )
    several = list(what) if isinstance(what, list | tuple) else [what]
    if not several:
        raise WhenceError("Nothing to explain: the list is empty.")
    inputs = [read_input(one) for one in several]
    if len({isinstance(one, str) for one in inputs}) > 1:
        raise WhenceError("Photos and texts need different models; explain them apart.")
    kind: Kind = "text" if isinstance(inputs[0], str) else "image"
    if not isinstance(model, LoadedModel):
        model = load(model, kind, weights, device)
    elif model.kind != kind:
        raise WhenceError(f"The model '{model.name}' explains {model.kind}s, not {kind}s.")
    prepared = model.prepare(inputs)
    for note in dict.fromkeys(note for notes in prepared.notes for note in notes):
        warnings.warn(f"Note: {note}.", stacklevel=2)
    request = {"target": target, "against": against, "classes": classes, "of": of}
    return model.explain(prepared, **request, method=method, rules=rules, **options)
