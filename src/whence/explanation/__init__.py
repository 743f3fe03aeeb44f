"""What an explanation is: scores, what they belong to, and how they were made."""

from whence.explanation.explanation import Explanation
from whence.explanation.generation import Generation
from whence.explanation.matrix import ScoreMatrix
from whence.explanation.pair import Fit, PairExplanation
from whence.explanation.parts import Check, ExplainedClass, KeptEvidence
from whence.explanation.photo import Photo
from whence.explanation.regions import PeakRegion
from whence.explanation.several import Explanations

__all__ = [
    "Check",
    "ExplainedClass",
    "Explanation",
    "Explanations",
    "Fit",
    "Generation",
    "KeptEvidence",
    "PairExplanation",
    "PeakRegion",
    "Photo",
    "ScoreMatrix",
]
