"""What dense heads return: logits, depths, masks or colours of the places of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.errors import WhenceError
from whence.targets.base import TargetContext
from whence.targets.query_outputs import QueryOutput, find_query_output

Quantity = Literal["logits", "depth", "alpha", "mask", "color", "queries"]
# Fields of what models return that hold one value, or several, for each place.
_FIELDS: dict[str, Quantity] = {
    "predicted_depth": "depth",
    "alphas": "alpha",
    "reconstruction": "color",
    "pred_masks": "mask",
    "out": "logits",
}
_COLORS = {0: "red", 1: "green", 2: "blue"}


@dataclass(frozen=True)
class DenseOutput:
    """What a dense head returned.

    Attributes:
        quantity: What it tells of each place: ``"logits"`` of classes, ``"depth"``, ``"alpha"``,
            ``"mask"`` (logits of masks for a prompt), ``"color"``, or ``"queries"``: logits of
            classes for each query, and of the places that belong to it.
        values: (batch, channels, rows, columns); for queries, their masks.
        classes: (batch, queries, classes + 1), for queries: the last class is "no object".
        quality: (batch, masks), how good the model thinks masks for a prompt are.
    """

    quantity: Quantity
    values: Tensor
    classes: Tensor | None = None
    quality: Tensor | None = None

    @property
    def channel_count(self) -> int:
        """Number of classes, masks or colours."""
        return self.values.shape[1] if self.classes is None else self.classes.shape[2] - 1

    def score_places(self) -> Tensor:
        """Values of the channels, (batch, channels, rows, columns); for queries, of classes."""
        if self.classes is None:
            return self.values
        return score_queries(self.classes, self.values)

    def detach(self) -> DenseOutput:
        """The same without what autograd knows of it."""
        classes = None if self.classes is None else self.classes.detach()
        quality = None if self.quality is None else self.quality.detach()
        return DenseOutput(self.quantity, self.values.detach(), classes, quality)

    def crop(self, rows: slice, columns: slice) -> DenseOutput:
        """The same at some of the places."""
        values = self.values[:, :, rows, columns]
        return DenseOutput(self.quantity, values, self.classes, self.quality)

    def name_channels(self, context: TargetContext) -> Mapping[int, str]:
        """Names of the classes, masks or colours."""
        if self.quantity == "color":
            return _COLORS if self.channel_count == len(_COLORS) else {}
        if self.quantity in ("depth", "alpha"):
            return {0: self.quantity}
        if self.quantity == "mask":
            return {n: f"mask {n}" for n in range(self.channel_count)}
        lone = self.channel_count == 1 and len(context.class_names) != 1
        return {0: "logit"} if lone else context.class_names


def find_dense_output(returned: Any, context: TargetContext) -> DenseOutput:
    """Find what a dense head returned.

    Raises:
        WhenceError: The model has none.
    """
    fields: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {}
    if not context.output_stated:
        queries = _find_queries(returned, fields, context)
        if queries is not None and queries.masks is not None:
            return DenseOutput("queries", queries.masks, queries.get_logits())
        for name, quantity in _FIELDS.items():
            value = fields.get(name)
            if isinstance(value, Tensor) and "logits" not in fields:
                return _make_output(quantity, value, fields.get("iou_scores"))
    try:
        logits = context.find_logits(returned)
    except WhenceError:
        raise WhenceError(
            f"The model returned {type(returned).__name__}, in which whence finds no values of "
            f"places. Say where they are, (batch, classes, rows, columns): Explainer(model, "
            f"output=lambda returned: ...)."
        ) from None
    if logits.dim() == 3 and (context.explains_text or "pred_boxes" in fields):
        other = "box(query)" if "pred_boxes" in fields else "token(position)"
        raise WhenceError(
            f"A pixel is a target of models with a dense head, and this one gives "
            f"{tuple(logits.shape)}; its targets are targets.{other}."
        )
    return _make_output("logits", logits, None)


def _find_queries(
    returned: Any, fields: Mapping[str, Any], context: TargetContext
) -> QueryOutput | None:
    has_masks = "masks_queries_logits" in fields or {"logits", "pred_masks"} <= fields.keys()
    return find_query_output(returned, context) if has_masks else None


def _make_output(quantity: Quantity, value: Tensor, quality: object) -> DenseOutput:
    """The output of a head with values of this shape.

    Raises:
        WhenceError: They are not of places.
    """
    if value.dim() == 3:
        value = value[:, None]
    if value.dim() == 5:  # masks of several prompts
        value = value.flatten(1, 2)
    if value.dim() != 4:
        raise WhenceError(
            f"A pixel is a target of models with a dense head, which give logits of shape (batch, "
            f"classes, rows, columns); this one gives {tuple(value.shape)}."
        )
    known = quality.flatten(1) if isinstance(quality, Tensor) else None
    fits = known is not None and known.shape == value.shape[:2]
    return DenseOutput(quantity, value, None, known if fits else None)


def score_queries(classes: Tensor, masks: Tensor) -> Tensor:
    """Logarithms of the semantic scores of places, (batch, classes, rows, columns).

    The score of class c at place x is the sum over queries q of softmax(classes)[q, c] *
    sigmoid(masks)[q, x], without the class "no object": what a segmentation is the highest of.

    Args:
        classes: (batch, queries, classes + 1), logits.
        masks: (batch, queries, rows, columns), logits.
    """
    # In double precision, so that nothing is lost where a probability is nearly 1.
    chances, shares = classes.double().softmax(2)[..., :-1], masks.double().sigmoid()
    scores = torch.einsum("bqc,bqrk->bcrk", chances, shares)
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()


def weigh_queries(classes: Tensor, masks: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How much of the score of a class at each place is each query's, and their logits.

    Args:
        classes: (batch, queries, classes + 1), logits.
        masks: (batch, queries, rows, columns), logits.
        labels: (batch,), a class for each sample.

    Returns:
        The shares, (batch, queries, rows, columns), which sum to 1 over queries and are constants;
        and the logit of the class plus that of the place, of the same shape.
    """
    at = torch.arange(len(classes), device=classes.device)
    chances = classes.double().log_softmax(2)[at, :, labels]
    logarithms = chances[..., None, None] + F.logsigmoid(masks.double())
    logits = classes[at, :, labels][..., None, None] + masks
    return logarithms.detach().softmax(1).to(masks.dtype), logits
