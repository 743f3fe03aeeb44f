"""Positions of tokens in the input: units and their grid, pooled tokens, words."""

from whence.layout.fields import TokenFields
from whence.layout.positions import (
    FoundLayout,
    Layout,
    compute_pooling,
    divide_input,
    find_layout,
)
from whence.layout.words import Tokens, find_tokens, sum_over_words

__all__ = [
    "FoundLayout",
    "Layout",
    "TokenFields",
    "Tokens",
    "compute_pooling",
    "divide_input",
    "find_layout",
    "find_tokens",
    "sum_over_words",
]
