"""Choose the rules for relevance that suit a method."""

from __future__ import annotations

import warnings

from whence import methods
from whence import rules as rule_sets
from whence.errors import WhenceError
from whence.methods import Method
from whence.rules import RuleSet


def choose_rules(rules: str | RuleSet, method: Method, name: str, keep_evidence: bool) -> RuleSet:
    """The rule set that a user names; a warning where it changes nothing.

    Args:
        rules: As for `Explainer.explain`.
        method: The method.
        name: What the user called it.
        keep_evidence: Whether evidence is returned, too.

    Raises:
        WhenceError: There is no such rule set, or it does not suit the method.
    """
    rule_set = rule_sets.get(rules)
    if rule_set.name != "stable" and not (method.propagates or keep_evidence):
        warnings.warn(
            f"Method '{methods.describe(name).name}' propagates no relevance, so that "
            f"rules='{rule_set.name}' changes nothing. Methods that do: "
            f"{', '.join(n for n in methods.available() if methods.get(n)().propagates)}.",
            stacklevel=4,
        )
    if rule_set.is_gradient and method.propagates:
        raise WhenceError(
            f"The rule set '{rule_set.name}' reads gradients, and method '{name}' needs "
            f"relevance: choose other rules, or a method with gradients='balanced'."
        )
    return rule_set
