"""One forward pass of an unmodified model, recorded so that it can be read backward."""

from whence.tracing.intervention import Edit, Intervention
from whence.tracing.logits import find_logits
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.record import record
from whence.tracing.registration import register_operation
from whence.tracing.stand_in import StandIns, copy_arguments, replicate, unwrap_model
from whence.tracing.trace import Trace

__all__ = [
    "AttentionSite",
    "Edit",
    "Intervention",
    "StandIns",
    "Trace",
    "copy_arguments",
    "find_logits",
    "record",
    "register_operation",
    "replicate",
    "unwrap_model",
]
