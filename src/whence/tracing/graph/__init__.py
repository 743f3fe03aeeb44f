"""Structure of a model, proven from the recorded graph: blocks, layers of attention, sequences."""

from whence.tracing.graph.blocks import Block
from whence.tracing.graph.layers import (
    AttentionLayer,
    find_blocks,
    find_layers,
    find_projection,
    find_structure,
    is_attention_pooling,
    is_sequential,
)

__all__ = [
    "AttentionLayer",
    "Block",
    "find_blocks",
    "find_layers",
    "find_projection",
    "find_structure",
    "is_attention_pooling",
    "is_sequential",
]
