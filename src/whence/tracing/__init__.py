"""One forward pass, read as attention, gradient or relevance."""

from whence.tracing import rules
from whence.tracing.attention import AttentionSite
from whence.tracing.spelling import register_operation
from whence.tracing.trace import Trace, trace

__all__ = ["AttentionSite", "Trace", "register_operation", "rules", "trace"]
