"""What a method may ask for of one recorded forward pass."""

from whence.evidence.evidence import KINDS, Evidence, gather, joined

__all__ = ["KINDS", "Evidence", "gather", "joined"]
