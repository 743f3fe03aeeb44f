"""What a method may ask for of one recorded forward pass."""

from whence.evidence.evidence import Evidence
from whence.evidence.forwards import Forwards
from whence.evidence.kinds import AT_INPUT, KINDS
from whence.tracing.trace import MapReadings

__all__ = ["AT_INPUT", "KINDS", "Evidence", "Forwards", "MapReadings"]
