"""Requests to masked language models, whose own decision is the masked word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from whence.targets import token
from whence.tracing import unwrap_model


def aim_at_mask(
    model: nn.Module, tokenizer: Any, inputs: object, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the masked word the target, where a masked language model was asked for no other.

    Args:
        model: Any model.
        tokenizer: Its tokenizer, if it has one.
        inputs: What the model takes.
        request: What was asked for. Words in it become tokens at the place of the mask.

    Returns:
        The request; unchanged for other models, and where there is not one mask in each text.
    """
    asked = dict(request)
    mask = getattr(tokenizer, "mask_token_id", None)
    plain = [asked.get(name) for name in ("target", "against")]
    if (
        not type(unwrap_model(model)).__name__.endswith("ForMaskedLM")
        or mask is None
        or not isinstance(inputs, Mapping)
        or asked.get("classes") is not None
        or not all(one is None or isinstance(one, str | int) for one in plain)
    ):
        return asked
    ids, real = inputs["input_ids"], inputs.get("attention_mask")
    found = [_find_place(row, mask, real, number) for number, row in enumerate(ids)]
    places = [place for place in found if place is not None]
    if len(places) < len(found):
        return asked
    asked["target"] = token(places, asked.get("target"))
    if asked.get("against") is not None:
        asked["against"] = token(places, asked["against"])
    return asked


def _find_place(row: Tensor, mask: int, real: Tensor | None, number: int) -> int | None:
    """The place of the only mask among the real tokens of a text; None if there is not one."""
    tokens = row if real is None else row[real[number].bool()]
    places = (tokens == mask).nonzero()[:, 0].tolist()
    return places[0] if len(places) == 1 else None
