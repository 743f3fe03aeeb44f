"""Explanations of one input, and the area under a curve."""

from itertools import pairwise

TEXT = "the film is wonderful , and not bad ."


def explain_by(loaded, content, *methods, **classes):
    prepared = loaded.prepare([content])
    return prepared, {name: loaded.explain(prepared, method=name, **classes) for name in methods}


def area_of(curve):
    """The trapezoid rule, written out."""
    return 100 * sum(0.1 * (a + b) / 2 for a, b in pairwise(curve))
