"""Where a token stands on the input: patches, prefix tokens, pooling, words."""

from whence.layout.pooling import pooling_weights
from whence.layout.tokens import Layout, find_layout
from whence.layout.words import Tokens, find_tokens, joined_words

__all__ = ["Layout", "Tokens", "find_layout", "find_tokens", "joined_words", "pooling_weights"]
