"""What a method may ask for of one recorded forward pass."""

from whence.evidence.evidence import KINDS, Evidence
from whence.evidence.forwards import Forwards
from whence.evidence.readings import MapReadings

__all__ = ["KINDS", "Evidence", "Forwards", "MapReadings"]
