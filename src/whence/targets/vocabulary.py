"""The columns of logits by name: tokens of a vocabulary, or labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsIndex, TypeAlias

from whence._util.near_names import suggest_names
from whence.errors import WhenceError
from whence.targets.base import TargetContext, TokenNames
from whence.targets.classes import find_class_index

OneToken: TypeAlias = SupportsIndex | str


def name_token(tokenizer: TokenNames, index: int) -> str:
    """The text of a token; its spelling where it has none of its own."""
    text = tokenizer.decode([index])
    # Part of a character, or a special token that is left out of texts.
    return text if text.strip("\ufffd") else str(tokenizer.convert_ids_to_tokens([index])[0])


class Vocabulary:
    """Names of the columns of logits: labels if the model has so many, and otherwise tokens.

    Args:
        context: What is known of the model.
        size: Number of columns.
    """

    def __init__(self, context: TargetContext, size: int) -> None:
        labels = context.class_names
        self._labels: Mapping[int, str] = labels if len(labels) == size else {}
        self._tokenizer, self._size = context.tokenizer, size

    def get_name(self, index: int) -> str:
        """The label, or the text of a token; its number if neither is known."""
        if self._labels or self._tokenizer is None:
            return self._labels.get(index, str(index))
        return name_token(self._tokenizer, index)

    def get_text(self, ids: list[int]) -> str:
        """The text of several tokens."""
        if self._tokenizer is None:
            return " ".join(map(self.get_name, ids))
        return self._tokenizer.decode(ids)

    def check_top(self, count: int) -> int:
        """Refuse to list more than there are."""
        if not 1 <= count <= self._size:
            raise WhenceError(
                f"The top {count} were asked for, but the vocabulary has {self._size} tokens."
            )
        return count

    def find_id(self, token: OneToken) -> int:
        """The column of a token or label that is given by index, text or name.

        Raises:
            WhenceError: There is no such token, or the text is several.
        """
        if not isinstance(token, str) or self._labels:
            return find_class_index(token, self._labels, self._size)
        if self._tokenizer is None:
            raise WhenceError(
                f"Which token is {token!r} is known to the tokenizer: Explainer(model, "
                f"tokenizer=tokenizer). Or give its id."
            )
        # As it is written: " Paris" with its space is another token than "Paris" for many.
        ids = self._tokenizer.encode(token, add_special_tokens=False)
        if len(ids) == 1:
            return ids[0]
        tokens = self._tokenizer.get_vocab()
        if token in tokens:
            return tokens[token]
        if not ids:
            raise WhenceError("A token is some text, such as ' cat', and this is none.")
        parts = ", ".join(repr(self.get_name(one)) for one in ids)
        near = suggest_names(token, tokens, lambda one: self.get_name(tokens[one]))
        raise WhenceError(
            f"{token!r} is {len(ids)} tokens of this model: {parts}. Name one of them, or explain "
            f"all of it as targets.span(...) of a text that holds it.{near}"
        )
