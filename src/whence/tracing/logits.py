"""The logits in what a model returned, with rows that belong to the explained input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence._util.torch_internals import view_base
from whence.errors import WhenceError
from whence.tracing.ops.guard import Guard

# Models that compare texts with something else return one matrix for each, the other's transpose.
_PER_TEXT, _PER = "logits_per_text", "logits_per_"
# How models name logits of one kind: LXMERT's question_answering_score, BLIP's itm_score.
_ENDINGS = "_logits", "_score"

# Fields of models that tell something of each place of an image.
_DENSE = frozenset(("masks_queries_logits", "predicted_depth", "pred_masks", "alphas"))

ABSENT_WEIGHTS = (
    "Weights of the model{} are on the meta device: offloaded, or never loaded. Load the model "
    "with all of its weights in memory."
)


class Logits(NamedTuple):
    """The logits of the explained input.

    Attributes:
        values: (batch, classes).
        columns: What the columns stand for, if it is no classes: "text", "image", "audio", ….
    """

    values: Tensor
    columns: str | None = None


def find_logits(returned: Any) -> Tensor:
    """The logits in what a model returned: a tensor, `.logits`, or the first of a sequence."""
    return read_logits(returned, of_text=False).values


def read_logits(returned: Any, of_text: bool) -> Logits:
    """The logits in what a model returned, for the rows of the explained input.

    Models that compare texts with images, audio or videos return a row for each text and a row for
    each of the others; the columns are then the other ones.

    Args:
        returned: What the model returned.
        of_text: Whether the explained input is a text.

    Raises:
        WhenceError: There are no logits.
    """
    if isinstance(returned, Tensor):
        return Logits(returned)
    fields = returned if isinstance(returned, Mapping) else {}
    logits = getattr(returned, "logits", fields.get("logits"))
    if isinstance(logits, Tensor):
        return Logits(logits)
    compared = [name for name in fields if str(name).startswith(_PER)]
    others = [name for name in compared if name != _PER_TEXT]
    if _PER_TEXT in compared and others:
        if of_text:
            return Logits(fields[_PER_TEXT], others[0].removeprefix(_PER))
        return Logits(fields[others[0]], "text")
    named = [x for n, x in fields.items() if str(n).endswith(_ENDINGS) and isinstance(x, Tensor)]
    if len(named) == 1:
        return Logits(named[0])
    if isinstance(returned, tuple | list) and returned and isinstance(returned[0], Tensor):
        if _is_transposed_pair(returned):
            return Logits(returned[1], "image") if of_text else Logits(returned[0], "text")
        return Logits(returned[0])
    places = "" if not _DENSE & fields.keys() else "Name a place, target=targets.pixel(), or say"
    raise WhenceError(
        f"The model returned {type(returned).__name__}, in which whence finds no logits. "
        f"{places or 'Say'} where they are: Explainer(model, output=lambda returned: ...)."
    )


def _is_transposed_pair(returned: tuple[Any, ...] | list[Any]) -> bool:
    """Whether a sequence begins with logits for each image, and the same for each text."""
    first, second = returned[0], returned[1] if len(returned) > 1 else None
    if not isinstance(second, Tensor) or first.dim() != 2 or second.shape != first.shape[::-1]:
        return False
    return second is not first and view_base(second) is view_base(first)


def check_logits(logits: Any, batch: int) -> None:
    """Refuse what is no logits of so many samples.

    Raises:
        WhenceError: It is none.
    """
    if not isinstance(logits, Tensor):
        raise WhenceError(f"output(...) must return the logits, not {type(logits).__name__}.")
    if logits.is_meta:
        raise WhenceError(ABSENT_WEIGHTS.format(""))
    if logits.dim() != 2 or logits.shape[0] != batch:
        raise WhenceError(
            f"Logits of shape (batch, classes) are needed, but the model gave "
            f"{tuple(logits.shape)} for {batch} input(s). Say which of them to explain: "
            f"{_suggest_target(logits)}, or any function f(outputs, inputs) -> (batch,)."
        )


def check_finite(logits: Tensor, guard: Guard) -> None:
    """Refuse logits that are not numbers. It waits for the forward pass to end on a GPU.

    Raises:
        WhenceError: Some are NaN or infinite.
    """
    if guard.sees_values and not torch.isfinite(logits).all():
        raise WhenceError("The model gives NaN or infinite logits for these inputs.")


def _suggest_target(logits: Tensor) -> str:
    """The target that logits of some shape may be meant for."""
    if logits.dim() == 4:
        return "target=targets.pixel(row, column)"
    if logits.dim() == 3:
        return (
            "target=targets.token(position) (--position), targets.box(query) of a detection model"
        )
    return "target=targets.similarity(other)"
