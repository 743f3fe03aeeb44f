"""Names of what a detection model finds: its classes, or the texts that it was given."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from whence.targets.base import TargetContext
from whence.targets.query_outputs import QueryOutput
from whence.targets.vocabulary import name_token


def name_objects(
    output: QueryOutput, context: TargetContext, batch: int, count: int
) -> list[Mapping[int, str]]:
    """Name the columns of a detection model's logits, for each sample.

    Args:
        output: What the model returned.
        context: What is known of the model and its inputs.
        batch: Number of samples.
        count: Number of columns.
    """
    if output.texts is not None:
        return _name_texts(context, batch, count)
    if output.token_ids is not None:
        return [_name_tokens(context, row) for row in output.token_ids]
    return [context.class_names] * batch


def _name_texts(context: TargetContext, batch: int, count: int) -> list[Mapping[int, str]]:
    """The texts themselves, where a tokenizer spells them; otherwise "text 0", "text 1", …."""
    ids = next((s.ids for s in context.sequences if s.ids is not None), None)
    tokenizer = context.tokenizer
    if tokenizer is None or ids is None or len(ids) != batch * count:
        return [{n: f"text {n}" for n in range(count)}] * batch
    special = set(getattr(tokenizer, "all_special_ids", ()))
    texts = [tokenizer.decode([i for i in row if i not in special]) for row in ids.tolist()]
    rows = [texts[n * count : (n + 1) * count] for n in range(batch)]
    return [{n: one.strip() or f"text {n}" for n, one in enumerate(row)} for row in rows]


def _name_tokens(context: TargetContext, ids: Tensor) -> dict[int, str]:
    tokenizer = context.tokenizer
    if tokenizer is None:
        return {n: f"token {n}" for n in range(len(ids))}
    return {n: name_token(tokenizer, int(i)).strip() for n, i in enumerate(ids)}
