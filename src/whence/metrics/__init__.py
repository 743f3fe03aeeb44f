"""How explanations are judged: pure functions of maps and truth, batched over samples."""

from whence.metrics import perturbation, rationale, segmentation, statistics, trust

__all__ = ["perturbation", "rationale", "segmentation", "statistics", "trust"]
