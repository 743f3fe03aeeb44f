"""Rules by which relevance, or a gradient read in another way, passes operations backward."""

from whence.rules.ruleset import Rule, RuleSet, available, batched_over_classes, get, register

from whence.rules import stable, chefer, balanced, attnlrp, residual  # isort: skip  # each registers its sets

__all__ = [
    "Rule",
    "RuleSet",
    "attnlrp",
    "available",
    "balanced",
    "batched_over_classes",
    "chefer",
    "get",
    "register",
    "residual",
    "stable",
]
