"""Similarity: the cosine of an input's embedding with another input's, or with a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence.errors import WhenceError
from whence.targets.base import Place, Scalar, Target, TargetContext

_OWN = {True: "text_embeds", False: "image_embeds"}


def similarity(other: Any) -> Target:
    """The cosine of the input's embedding with that of another input, or with a given vector.

    The embedding is what ``Explainer(model, output=...)`` gives, if stated; the model's
    ``text_embeds`` or ``image_embeds``; what it returns, if that is (batch, width); of a text the
    mean of the last hidden states of its tokens, and of an image the pooled output. Where rules
    propagate relevance or a gradient, the norm of the embedding is a constant, as in norms.

    Args:
        other: Another input as the model takes it, a mapping of tensors, of one row or one for each
            sample; or a vector (width,) or (batch, width); or a text, or a list with one for each
            sample, where the Explainer knows the tokenizer.
    """
    return SimilarityTarget(other)


@dataclass(frozen=True, eq=False)
class SimilarityTarget(Target):
    """The cosine with another input's embedding, or with a vector."""

    other: Any

    @override
    def select_samples(self, rows: slice, batch: int) -> SimilarityTarget:
        if isinstance(self.other, Tensor):
            several = self.other.dim() == 2 and len(self.other) == batch > 1
            return SimilarityTarget(self.other[rows]) if several else self
        if not isinstance(self.other, Mapping):
            several = isinstance(self.other, list | tuple) and len(self.other) == batch > 1
            return SimilarityTarget(self.other[rows]) if several else self
        tensors = {n: x for n, x in self.other.items() if isinstance(x, Tensor)}
        if batch > 1 and tensors and all(len(x) == batch for x in tensors.values()):
            return SimilarityTarget({**self.other, **{n: x[rows] for n, x in tensors.items()}})
        return self

    @override
    def make_place(self, context: TargetContext) -> Place:
        texts = self.other if isinstance(self.other, list | tuple) else [self.other]
        if not isinstance(self.other, Tensor | Mapping) and not (
            texts and all(isinstance(one, str) for one in texts)
        ):
            raise WhenceError(
                f"similarity(...) takes another input, as a mapping of tensors, a text or a "
                f"vector, not {type(self.other).__name__}."
            )
        return EmbeddingPlace(context)

    @override
    def resolve(self, place: Place, read: Tensor, context: TargetContext) -> list[Scalar]:
        samples = torch.arange(context.batch, device=read.device)
        scalar = SimilarityScalar(place, _Pooling(context, read))
        own = scalar.embed(read, samples)
        if isinstance(self.other, Tensor):
            other = self.other.to(own).reshape(-1, self.other.shape[-1])
        else:
            inputs = self._read_inputs(context, read.device)
            with torch.no_grad():
                found = _find_embedding(context.run(inputs), context)
            other = found if found.dim() == 2 else _average(found, _get_mask(inputs, found))
        if other.shape[1] != own.shape[1] or len(other) not in (1, len(own)):
            raise WhenceError(
                f"The embedding of the input has shape {tuple(own.shape)}, and that of the other "
                f"{tuple(other.shape)}: one row, or one for each sample, of the same width is "
                f"needed."
            )
        scalar.other = F.normalize(other.detach().to(own), dim=1).expand(len(own), -1)
        scalar.indices, scalar.names = [0] * len(own), self._name(len(own))
        return [scalar]

    def _read_inputs(self, context: TargetContext, device: torch.device) -> Mapping[str, Any]:
        """The other input as the model takes it; texts are tokenised."""
        if isinstance(self.other, Mapping):
            return self.other
        if not callable(context.tokenizer):
            raise WhenceError(
                "similarity(text) needs the tokenizer: Explainer(model, tokenizer=tokenizer)."
            )
        texts = [self.other] if isinstance(self.other, str) else list(self.other)
        encoded = context.tokenizer(texts, padding=len(texts) > 1, return_tensors="pt")
        return {name: x.to(device) for name, x in encoded.items()}

    def _name(self, count: int) -> list[str]:
        if isinstance(self.other, Tensor | Mapping):
            return ["similarity"] * count
        texts = [self.other] * count if isinstance(self.other, str) else self.other
        return [f"similarity to “{text}”" for text in texts]


class EmbeddingPlace(Place):
    """The embedding in what a model returned, or the hidden states of which it is the mean."""

    key = "embedding"

    def __init__(self, context: TargetContext) -> None:
        self._context = context

    @override
    def find(self, returned: Any) -> Tensor:
        return _find_embedding(returned, self._context)


def _find_embedding(returned: Any, context: TargetContext) -> Tensor:
    """The embedding, (batch, width), or hidden states to average, (batch, tokens, width)."""
    if context.output_stated:
        found = context.find_logits(returned)
        if isinstance(found, Tensor) and found.dim() in (2, 3):
            return found
    if isinstance(returned, Tensor) and returned.dim() in (2, 3):
        return returned
    fields = returned if isinstance(returned, Mapping) else {}
    pooled = () if context.explains_text else ("pooler_output",)
    for name in (_OWN[context.explains_text], *pooled, "last_hidden_state"):
        if isinstance(fields.get(name), Tensor) and fields[name].dim() in (2, 3):
            return fields[name]  # type: ignore[no-any-return]
    raise WhenceError(
        f"The model returned {type(returned).__name__}, in which whence finds no embedding. Say "
        f"where it is: Explainer(model, output=lambda returned: ...)."
    )


class _Pooling:
    """Averages hidden states over the real tokens of a batch."""

    def __init__(self, context: TargetContext, read: Tensor) -> None:
        fitting = [s.mask for s in context.sequences if s.mask.shape == read.shape[:2]]
        self._mask = fitting[0].to(read.device) if fitting else None

    def __call__(self, read: Tensor, samples: Tensor) -> Tensor:
        if read.dim() == 2:
            return read
        return _average(read, None if self._mask is None else self._mask[samples])


def _get_mask(inputs: Mapping[str, Any], hidden: Tensor) -> Tensor | None:
    mask = inputs.get("attention_mask")
    fits = isinstance(mask, Tensor) and mask.shape == hidden.shape[:2]
    return mask if fits else None


def _average(hidden: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(1) / weights.sum(1)


class SimilarityScalar(Scalar):
    """The cosine of embeddings with given ones."""

    other: Tensor

    def __init__(self, place: Place, embed: _Pooling) -> None:
        self.place, self.embed = place, embed

    @override
    def values(self, read: Tensor, samples: Tensor) -> Tensor:
        return (F.normalize(self.embed(read, samples), dim=1) * self.other[samples]).sum(1)

    @override
    def propagated_values(self, read: Tensor, samples: Tensor) -> Tensor:
        own = self.embed(read, samples)
        constant: Tensor = torch.linalg.vector_norm(own.detach(), dim=1, keepdim=True)
        norm = constant.clamp_min(torch.finfo(own.dtype).tiny)
        return (own / norm * self.other[samples]).sum(1)
