"""whence: from which parts of its input did a Transformer's decision come?"""

import importlib
from typing import TYPE_CHECKING, Any

from whence.errors import NoRuleError, WhenceError, WhenceWarning
from whence.version import __version__

if TYPE_CHECKING:
    from whence import benchmark, captum, faithfulness, methods, models, rules, targets
    from whence.api import explain
    from whence.distributed.stored_result import StoredResult, open_result
    from whence.explainer import Explainer
    from whence.explanation import Explanation, Explanations, Generation, PairExplanation
    from whence.layout import Layout
    from whence.maximization import MaximalPicture, activation_maximization
    from whence.pipeline.compare import Comparison, compare
    from whence.tracing import register_operation

# What needs torch is imported when first asked for, so that `whence --help` answers at once.
_HOMES = {
    "Comparison": "whence.pipeline.compare",
    "Explainer": "whence.explainer",
    "Explanation": "whence.explanation",
    "Explanations": "whence.explanation",
    "Generation": "whence.explanation",
    "Layout": "whence.layout",
    "MaximalPicture": "whence.maximization",
    "PairExplanation": "whence.explanation",
    "StoredResult": "whence.distributed.stored_result",
    "activation_maximization": "whence.maximization",
    "compare": "whence.pipeline.compare",
    "explain": "whence.api",
    "open_result": "whence.distributed.stored_result",
    "register_operation": "whence.tracing",
}
_PACKAGES = ("benchmark", "captum", "faithfulness", "methods", "models", "rules", "targets")

__all__ = [
    "Comparison",
    "Explainer",
    "Explanation",
    "Explanations",
    "Generation",
    "Layout",
    "MaximalPicture",
    "NoRuleError",
    "PairExplanation",
    "StoredResult",
    "WhenceError",
    "WhenceWarning",
    "__version__",
    "activation_maximization",
    "benchmark",
    "captum",
    "compare",
    "explain",
    "faithfulness",
    "methods",
    "models",
    "open_result",
    "register_operation",
    "rules",
    "targets",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"whence.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'whence' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
