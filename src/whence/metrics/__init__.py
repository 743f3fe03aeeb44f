"""Measures of explanations, as functions of maps and truth: one module for each kind.

Curves of deletion: `deletion`, `curves`, `pixels` and `imputation` (fillings), `words`, `soft`,
`context`. Pairs of groups: `saco`. Regions: `segmentation`, `localization`. Marked words and known
cues: `rationale`, `cues`. The model changed: `fidelity`, `randomization`, `trust`. Comparing:
`statistics`, `rankings`.
"""
