"""whence: from which parts of its input did a Transformer's decision come?"""

from whence import methods
from whence.errors import NoRuleError, WhenceError
from whence.explainer import Explainer
from whence.explanation import Explanation
from whence.layout import Layout
from whence.tracing import register_operation, rules
from whence.version import __version__

__all__ = [
    "Explainer",
    "Explanation",
    "Layout",
    "NoRuleError",
    "WhenceError",
    "__version__",
    "methods",
    "register_operation",
    "rules",
]
