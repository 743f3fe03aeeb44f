"""One forward pass, read as attention, gradient or relevance."""

from whence.tracing.calls import register_operation
from whence.tracing.graph.sites import AttentionSite
from whence.tracing.trace import Trace, trace

__all__ = ["AttentionSite", "Trace", "register_operation", "trace"]
