"""The targets of an explanation, with the trace that they were computed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from whence.errors import UndeclaredEvidenceError
from whence.layout import FoundLayout
from whence.rules import RuleSet
from whence.targets import Scalars, find_token_logits
from whence.tracing.flow.flow import TokenFlow
from whence.tracing.graph import AttentionLayer, find_layers
from whence.tracing.trace import Trace


@dataclass(eq=False)
class ExplainedTargets:
    """Some targets, and the forward pass that they were computed in.

    Attributes:
        trace: The recorded forward pass.
        targets: The scalars that are explained, of what the model returned.
        layout: Where tokens stand on the input.
        centered: Whether a logit is explained less the mean of all that compete with it.
    """

    trace: Trace
    targets: Scalars
    layout: FoundLayout
    centered: bool = field(default=False, kw_only=True)

    @property
    def logits(self) -> Tensor:
        """(batch, all classes), or whatever targets read, as a plain forward gives it."""
        return self.trace.logits.detach()

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.trace.batch

    @property
    def tokens(self) -> int:
        """The number of tokens of the input, prefix tokens and padding included."""
        return self.layout.tokens

    @property
    def token_logits(self) -> Tensor:
        """(batch, tokens, vocabulary), the logits at every token of what is read and written."""
        found = find_token_logits(self.targets)
        if found is None:
            raise UndeclaredEvidenceError(
                "The logits of every token are kept where the targets are tokens, for a method "
                "that declares it: add 'token_logits' to its needs."
            )
        return found

    @cached_property
    def layers(self) -> list[AttentionLayer]:
        """The layers of attention that the target depends on."""
        return find_layers(self.trace)

    @property
    def flow(self) -> TokenFlow | None:
        """How tokens pass the layers, where they do not simply pass all of them in turn."""
        return self.trace.flow

    def make_seeds(self, rules: RuleSet | None) -> Tensor:
        """Where a backward pass starts that goes by rules, or as plain gradients."""
        # Columns that are texts or images are what was given, not all that could have been.
        centered = self.centered and self.trace.columns is None
        by_rules = rules is not None
        return self.targets.make_seeds(self.logits, by_rules=by_rules, centered=centered)
