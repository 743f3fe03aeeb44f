"""Measure how faithful explanations of one input are, by deleting parts of it."""

from whence.faithfulness.measure import DRAWS, measure, measure_photos
from whence.faithfulness.result import STEPS, Faithfulness, MethodCurves
from whence.metrics.deletion import Progress

__all__ = [
    "DRAWS",
    "STEPS",
    "Faithfulness",
    "MethodCurves",
    "Progress",
    "measure",
    "measure_photos",
]
