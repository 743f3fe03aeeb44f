"""What detection and segmentation models return for their queries: classes, boxes and masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.targets.areas import TargetArea
from whence.targets.base import TargetContext

# The logit of what is no choice, such as padding: its probability is 0.
_NEVER = -1e4
_CLASSES, _MASKS = "class_queries_logits", "masks_queries_logits"


@dataclass(frozen=True)
class QueryOutput:
    """What a model returned for its queries.

    Attributes:
        logits: (batch, queries, classes).
        boxes: (batch, queries, 4), middle, width and height as shares of the picture.
        masks: (batch, queries, rows, columns), logits of the places that belong to a query.
        texts: (batch, texts, width), where classes are texts that the model was given.
        token_ids: (batch, tokens), where classes are tokens of a text that the model was given.
    """

    logits: Tensor | None = None
    boxes: Tensor | None = None
    masks: Tensor | None = None
    texts: Tensor | None = None
    token_ids: Tensor | None = None

    @property
    def noun(self) -> str:
        """What a query finds, in a word."""
        return "mask" if self.boxes is None and self.masks is not None else "box"

    def get_logits(self) -> Tensor:
        """The logits, which are always there once they were read."""
        if self.logits is None:
            raise RuntimeError("The output of queries was not read.")
        return self.logits

    def detach(self) -> QueryOutput:
        """The same without what autograd knows of it."""
        values = vars(self).items()
        return QueryOutput(**{name: None if x is None else x.detach() for name, x in values})

    def has_none(self, context: TargetContext, count: int) -> bool:
        """Whether the last of so many classes is "no object", as where a query has one class."""
        if self.texts is not None or self.token_ids is not None:
            return False
        return self.noun == "mask" or count == len(context.class_names) + 1

    def find_area(self, sample: int, query: int, context: TargetContext) -> TargetArea | None:
        """Where a query lies in the picture; None if the model does not tell."""
        if self.boxes is not None and self.boxes.shape[-1] == 4:
            x, y, width, height = self.boxes[sample, query].double().tolist()
            across, down = _measure_content(context, sample)
            sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            left, top, right, bottom = (min(max(side, 0.0), 1.0) for side in sides)
            return TargetArea.from_bounds(left * across, top * down, right * across, bottom * down)
        if self.masks is not None:
            return TargetArea.from_mask(self.masks[sample, query] > 0)
        return None


def find_query_output(returned: Any, context: TargetContext) -> QueryOutput:
    """Find logits of queries, and what belongs to them, in what a model returned.

    Raises:
        WhenceError: There are no logits.
    """
    fields: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {}
    if context.output_stated or _CLASSES not in fields:
        try:
            logits = context.find_logits(returned)
        except WhenceError:
            raise WhenceError(
                f"The model returned {type(returned).__name__}, in which whence finds no logits "
                f"of boxes. Say where they are, (batch, queries, classes): Explainer(model, "
                f"output=lambda returned: ...)."
            ) from None
    else:
        logits = fields[_CLASSES]
    size = logits.shape[:2]
    masks = _get(fields, _MASKS, size, 4)
    if masks is None:
        masks = _get(fields, "pred_masks", size, 4)
    texts = _get(fields, "text_embeds", size[:1], 3)
    if texts is not None and texts.shape[1] != logits.shape[-1]:
        texts = None
    boxes = _get(fields, "pred_boxes", size, 3)
    ids = _get(fields, "input_ids", size[:1], 2)
    if ids is not None:
        logits = logits[..., : ids.shape[1]]  # there are as many columns as texts may have tokens
    if texts is not None or ids is not None:
        logits = _replace_infinite(logits)
    return QueryOutput(logits, boxes, masks, texts, ids)


def _replace_infinite(logits: Tensor) -> Tensor:
    """Logits in which texts that are padding, or their tokens, are very low and not -inf."""
    infinite = logits.detach() == -torch.inf
    return logits.masked_fill(infinite, _NEVER) if bool(infinite.any()) else logits


def _get(fields: Mapping[str, Any], name: str, size: torch.Size, dims: int) -> Tensor | None:
    value = fields.get(name)
    fits = isinstance(value, Tensor) and value.dim() == dims and value.shape[: len(size)] == size
    return value if fits else None


def _measure_content(context: TargetContext, sample: int) -> tuple[float, float]:
    """Shares of the width and the height that are no padding; boxes are relative to these."""
    inputs = context.select_inputs(torch.arange(context.batch))
    mask = inputs.get("pixel_mask") if isinstance(inputs, Mapping) else None
    if not isinstance(mask, Tensor) or mask.dim() != 3 or not bool(mask[sample].any()):
        return 1.0, 1.0
    columns, rows = mask[sample].bool().any(0), mask[sample].bool().any(1)
    return float(columns.double().mean()), float(rows.double().mean())
