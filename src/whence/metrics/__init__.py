"""Measures of explanations: deletion curves, segmentation, rationales, trust, and statistics.

The modules are `deletion`, `curves`, `pixels`, `segmentation`, `rationale`, `trust`, `statistics`.
"""
