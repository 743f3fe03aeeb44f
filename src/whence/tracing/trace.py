"""Trace: one recorded forward pass, read backward as gradient or as relevance, or site by site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from whence.errors import NoAttentionError, WhenceError
from whence.tracing.backward import propagate_backward
from whence.tracing.intervention import Intervention
from whence.tracing.logits import Logits
from whence.tracing.ops.base import BackwardRules
from whence.tracing.recording import Recording, edge_of
from whence.tracing.signs import join_signs, split_signs

if TYPE_CHECKING:
    from whence.tracing.flow.flow import TokenFlow
    from whence.tracing.flow.places import TokenIndex
    from whence.tracing.graph.layers import Structure


class Trace(Recording):
    """A recorded forward pass.

    Attributes:
        logits: (batch, classes), as a plain forward gives them; part of the graph.
        columns: What the columns of the logits stand for, if it is no classes.
        rerecord: Records the same forward pass with an intervention.
        tops: The nodes of the graph from which the target is computed by routing alone: that of
            the logits, or fewer where some classes are computed apart from others.
        views: The trace as each of several explained inputs sees it, by the argument's name.
        at_text: The same, with only the attention that also reads a text, as the layers of a
            language model read the words beside an image; None if there is no such text.
        structure: What was found in the graph: layers and sequences, once they have been found.
        flow: How tokens pass the layers, where they do not simply pass all of them in turn.
        flow_problem: A sentence on why that could not be found; empty if it could, or need not.
        has_marked_skips: Whether operations know which of them add up skip connections.
        token_indices: For places of the graph, the token that each element belongs to, if a flow
            tells.
    """

    logits: Tensor
    columns: str | None
    rerecord: Callable[[Intervention], Trace]
    tops: list[Node]
    views: Mapping[str | int, Trace] = MappingProxyType({})
    at_text: Trace | None = None
    structure: Structure | None = None
    flow: TokenFlow | None = None
    flow_problem: str = ""
    has_marked_skips = False
    token_indices: Mapping[tuple[Node, int], TokenIndex] = MappingProxyType({})
    _samples_first: dict[tuple[Node, int], bool]

    def finish(self, logits: Logits, rerecord: Callable[[Intervention], Trace]) -> None:
        """Keep what the forward pass has led to."""
        self.logits, self.columns = logits
        self.tops = [] if self.logits.grad_fn is None else [self.logits.grad_fn]
        self.rerecord, self._samples_first, self._recorder = rerecord, {}, None

    def require_attention(self) -> None:
        """Refuse a model whose attention cannot be read.

        Raises:
            WhenceError: It cannot.
        """
        if self.attention_problem:
            kind = WhenceError if self.sites else NoAttentionError
            raise kind(self.attention_problem)

    def attention(self) -> list[Tensor]:
        """Each attention map, as (batch, heads, queries, keys)."""
        return [site.split_heads(site.weights.detach(), self.batch) for site in self.sites]

    def read(
        self,
        targets: Tensor,
        at: Sequence[Tensor | GradientEdge],
        rules: BackwardRules | None = None,
    ) -> list[Tensor]:
        """Gradients of targets, or what rules make of them, somewhere in the graph.

        Args:
            targets: As for `make_seeds`.
            at: Where to read.
            rules: How values pass operations; None for plain gradients.

        Returns:
            For each place, a tensor of its shape with the targets as a new first dimension.
        """
        values = dict(self.iterate_backward([targets], at, [rules]))
        return [values[number][0] for number in range(len(at))]

    def iterate_backward(
        self,
        targets: Sequence[Tensor],
        at: Sequence[Tensor | GradientEdge],
        rules: Sequence[BackwardRules | None],
        *,
        release: bool = False,
        start: GradientEdge | None = None,
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """One backward pass for several rule sets, handed over place by place.

        It goes only as far as is asked for. All targets go together.

        Args:
            targets: For each rule set, as for `make_seeds`.
            at: Where to read.
            rules: How values pass operations; None for plain gradients.
            release: Whether to free all that has been passed. The trace can then be read only this
                once.
            start: A place to begin at, in place of the logits; targets are then values there.

        Yields:
            The number of a place and its values, one for each rule set, as `read` gives them.
        """
        for rule_set in rules:
            if rule_set is not None:
                rule_set.prepare(self)
        parts = list(split_signs([self.make_seeds(one) for one in targets], rules, self.guard))
        several = bool(parts) and len(parts[0].seeds) > 1
        seeds = [part.seeds if several else part.seeds[0] for part in parts]
        by = [part.rules for part in parts]
        for number, read in self._propagate(at, seeds, by, several, release, start):
            values = join_signs(parts, read)
            yield number, values if several else [value[None] for value in values]

    def make_seeds(self, targets: Tensor) -> Tensor:
        """Where a backward pass starts, (n, batch, columns): weights of a sum of logits.

        Args:
            targets: Class indices, (batch, n), for one-hot weights; or the weights themselves.
        """
        if targets.is_floating_point():
            return targets
        seeds = self.logits.new_zeros(targets.shape[1], *self.logits.shape)
        return seeds.scatter_(2, targets.T[..., None], 1.0)

    def read_sample(self, at: Sequence[Tensor | GradientEdge], sample: int = 0) -> list[Tensor]:
        """Gradients of the sum of all logits of one sample, somewhere in the graph."""
        seed = torch.zeros_like(self.logits)
        seed[sample] = 1
        return [value[0] for value in self.read(seed[None], at)]

    def find_sample_order(self, at: Sequence[GradientEdge]) -> None:
        """Find, for places whose rows are all tokens of all samples, if samples come first.

        `split_tokens` does so by itself where shapes do not tell; for many places at once it is
        faster.
        """
        # The logits of a sample do not depend on the rows of others. The first alone does not tell:
        # where a class token is read, it touches only the first row, which is its in either layout.
        of_first, of_last = (self.read_sample(at, sample) for sample in (0, self.batch - 1))
        for edge, first, last in zip(at, of_first, of_last, strict=True):
            rows = self.batch, self.sites[0].key_count, -1
            others = first.reshape(rows)[1:].any() | last.reshape(rows)[:-1].any()
            self._samples_first[edge.node, edge.output_nr] = not self.guard.look_at(others)

    def split_tokens(self, value: Tensor, at: GradientEdge, shape: torch.Size) -> Tensor:
        """A value read where rows are tokens, as (..., batch, tokens, rest).

        Sequences may come before samples, and both may be folded into one dimension.

        Raises:
            WhenceError: The values are not laid out as samples and tokens.
        """
        index = self.token_indices.get((at.node, at.output_nr))
        if index is not None:
            extra = value.shape[: value.dim() - len(shape)]
            return index.to_rows(value.reshape(-1, *shape)).reshape(
                *extra, index.batch, index.count, -1
            )
        batch, tokens = self.batch, self.sites[0].key_count
        extra = value.shape[: value.dim() - len(shape)]
        samples_first = shape[:2] == (batch, tokens)
        tokens_first = shape[:2] == (tokens, batch)
        if len(shape) == 2 and shape[0] == batch * tokens:
            samples_first = tokens_first = True
            shape = torch.Size((batch, tokens, shape[1]))
        if not samples_first and not tokens_first:
            raise WhenceError(
                f"Values of shape {tuple(shape)} are not laid out as {batch} sample(s) of {tokens} "
                f"tokens, as this method needs them."
            )
        if samples_first and tokens_first and batch > 1:
            if (at.node, at.output_nr) not in self._samples_first:
                self.find_sample_order([at])
            samples_first = self._samples_first[at.node, at.output_nr]
        if samples_first:
            return value.reshape(*extra, batch, tokens, *shape[2:])
        value = value.reshape(*extra, tokens, batch, *shape[2:])
        return value.transpose(len(extra), len(extra) + 1)

    def _propagate(
        self,
        at: Sequence[Tensor | GradientEdge],
        seeds: Sequence[Tensor],
        rules: Sequence[BackwardRules | None],
        several: bool = False,
        release: bool = False,
        start: GradientEdge | None = None,
    ) -> Iterator[tuple[int, list[Tensor]]]:
        edges = [one if isinstance(one, GradientEdge) else edge_of(one) for one in at]
        values = propagate_backward(
            self.logits if start is None else start,
            seeds,
            rules,
            edges,
            batch=self.batch,
            several=several,
            release=release,
        )
        while True:
            # Not around the whole loop: what is done with a value is the caller's own affair.
            with torch.inference_mode(False), torch.no_grad():
                found = next(values, None)
            if found is None:
                return
            yield found
