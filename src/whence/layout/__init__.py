"""Positions of tokens in the input: the grid of patches, prefix tokens, pooled tokens, words."""

from whence.layout.positions import Layout, compute_pooling, find_layout
from whence.layout.words import Tokens, find_tokens, sum_over_words

__all__ = ["Layout", "Tokens", "compute_pooling", "find_layout", "find_tokens", "sum_over_words"]
