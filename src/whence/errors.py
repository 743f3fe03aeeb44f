"""What whence raises: sentences that a user can act on."""

from __future__ import annotations


class WhenceError(ValueError):
    """Something about the model, the inputs or the request that the user can put right."""


class NoRuleError(WhenceError):
    """Relevance meets an operation for which the rule set has no rule."""

    @classmethod
    def at_operation(cls, rules: str, name: str, where: str, kind: str = "my_kind") -> NoRuleError:
        """The error for an operation that relevance cannot pass.

        Args:
            rules: Name of the rule set.
            name: The torch function or module.
            where: The module it was called in; may be empty.
            kind: The kind of operation that lacks a rule.
        """
        called = f", called in {where}" if where else ""
        return cls(
            f"Relevance cannot pass `{name}`{called}: the rule set '{rules}' has no rule for it. "
            f"Say what kind of operation it, or the module that it is part of, is with "
            f"whence.register_operation(...), or give a rule: "
            f"whence.rules.get('{rules}').extend('mine', {kind}=my_rule)."
        )


class NoAttentionError(WhenceError):
    """Attention was asked for, and the model has none that can be seen."""


class LostGradientError(WhenceError):
    """A call makes numbers of what depends on the input, but autograd knows nothing of it."""

    @classmethod
    def at_call(cls, name: str, where: str) -> LostGradientError:
        """The error for a call that gradients do not pass.

        Args:
            name: The torch function.
            where: The module it was called in.
        """
        return cls(
            f"`{name}`, called in {where}, computes without gradients, so that the input cannot be "
            f"followed through it. Explain the model in floating point, as it was before it was "
            f"quantized, or one whose calls autograd knows."
        )


class UndeclaredEvidenceError(WhenceError):
    """A method reads evidence that it did not declare in `needs`."""


class WhenceWarning(UserWarning):
    """A result may not say what it seems to say: one of its checks is in doubt."""


class TooLargeError(Exception):
    """A batch takes more memory than its bound: it has to go in smaller chunks."""


class MemoryShortError(WhenceError):
    """The device's memory is too small: no fault of a sample."""
