"""What a method may ask for of one recorded forward pass."""

from whence.evidence.evidence import Evidence
from whence.evidence.forwards import Forwards
from whence.evidence.kinds import KINDS
from whence.tracing.readings import MapReadings

__all__ = ["KINDS", "Evidence", "Forwards", "MapReadings"]
