"""What methods work with: the readings of one trace that they asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.evidence.forwards import Forwards
from whence.evidence.readings import Layer, Places
from whence.layout import Layout, compute_pooling
from whence.rules import RuleSet
from whence.rules.balanced import Reading, reading
from whence.tracing.graph.blocks import Block, find_blocks
from whence.tracing.graph.sequences import find_streams, pools
from whence.tracing.trace import Trace

KINDS = {
    "attention": "the attention maps",
    "gradient": "the gradient of the class logit at them",
    "relevance": "the relevance of the class at them",
    "inputs": "the pixels or embeddings",
    "input_gradient": "the gradient at the pixels or embeddings",
    "input_relevance": "the relevance of the pixels or embeddings",
    "hidden": "the hidden states: what enters each block, and what leaves the last",
    "hidden_gradient": "the gradient at them",
    "hidden_relevance": "the relevance of them",
    "attended": "what the values of each attention are computed from",
    "attended_gradient": "the gradient there",
    "blocks": "the operations around each attention",
    "forwards": "further forward passes",
}


_FUSED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}
_JOINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": Tensor.add_,
    "max": torch.maximum,
    "min": torch.minimum,
}


@dataclass
class Evidence:
    """What one trace says. Lists are over layers, the one nearest the input first.

    Inside a method, readings that belong to a class (gradients, relevance, pooling) have the
    explained classes as first dimension; values of the forward pass do not:

    ==================== =========================================================================
    attention            (batch, heads, queries, keys) for each layer
    gradient, relevance  (classes, batch, heads, queries, keys) for each layer
    inputs               (batch, channels, height, width) or (batch, tokens, width)
    input_gradient, ...  (classes, ...) and the shape of the inputs
    hidden, attended     (batch, tokens, width) for each layer; hidden has one more, which with
                         pooling by attention is what that one reads
    hidden_gradient, ... (classes, batch, tokens, width) for each layer
    ==================== =========================================================================

    What ``keep_evidence=True`` returns has these without the classes for one target, and with the
    classes behind the batch for several. What was not asked for is empty or None, and so are
    readings at maps below the method's first layer.

    Attributes:
        pooling: (classes, batch, tokens), weights of the rows that the classifier reads.
        classes: (batch, classes), the explained class indices.
        logits: (batch, all classes).
        layout: Where tokens stand on the input.
        padding: (batch, tokens), true where a token is padding; None if there is none.
        attention: The maps.
        gradient: Gradient of the class logit at the maps.
        relevance: Relevance of the class at the maps.
        inputs: Pixels, or embeddings of tokens.
        input_gradient: Gradient of the class logit at the inputs.
        input_relevance: Relevance of the class at the inputs.
        hidden: The residual stream before each block and behind the last.
        hidden_gradient: Gradient of the class logit there.
        hidden_relevance: Relevance of the class there.
        attended: What the values of each attention are computed from.
        attended_gradient: Gradient of the class logit there.
        blocks: The operations around each attention, and where they are in the trace.
        forwards: Runs the model again at other inputs.
        trace: The recorded forward pass.
        rules: The rules for relevance.
        special: (batch, tokens), true where a token belongs to no word; None if that is not known.
        multi_label: Whether several classes can hold at once.
        found: What a method has to tell beside its scores, as JSON: for each sample and each
            explained class. It goes into the settings of the explanation.
        descent: Reads the attention maps on the way down, once, if they are not all there.
    """

    pooling: Tensor
    classes: Tensor
    logits: Tensor
    layout: Layout
    padding: Tensor | None = None
    attention: list[Tensor] = field(default_factory=list)
    gradient: list[Tensor] = field(default_factory=list)
    relevance: list[Tensor] = field(default_factory=list)
    inputs: Tensor | None = None
    input_gradient: Tensor | None = None
    input_relevance: Tensor | None = None
    hidden: list[Tensor] = field(default_factory=list)
    hidden_gradient: list[Tensor] = field(default_factory=list)
    hidden_relevance: list[Tensor] = field(default_factory=list)
    attended: list[Tensor] = field(default_factory=list)
    attended_gradient: list[Tensor] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    forwards: Forwards | None = None
    trace: Trace | None = None
    rules: RuleSet | None = None
    special: Tensor | None = None
    multi_label: bool = False
    found: list[list[dict[str, Any]]] = field(default_factory=list)
    descent: Iterator[Callable[[], Iterator[Layer]]] | None = field(default=None, repr=False)

    def fused(
        self,
        weigh: Callable[[Layer], Tensor],
        heads: Literal["mean", "max", "min"] = "mean",
        first: int = 0,
    ) -> Iterator[Tensor]:
        """A matrix (..., queries, keys) for each layer, from the last down to a first one.

        Methods that say that they go `layer_by_layer` can ask for this once. Each layer is let go
        before the next is read, and the heads of long sequences come one after the other.

        Args:
            weigh: Makes maps (..., heads, queries, keys) of what there is in some heads of a layer.
            heads: How heads are made one.
            first: The first layer; the method's `first_layer`.
        """
        for layer in self._layers(first):
            fused, count = None, 0
            for some in layer():
                maps = weigh(some)
                count += maps.shape[-3]
                part = _FUSED[heads](maps, -3)
                fused = part if fused is None else _JOINED[heads](fused, part)
                del maps, part, some
            assert fused is not None
            yield fused.div_(count) if heads == "mean" else fused

    def _layers(self, first: int) -> Iterator[Callable[[], Iterator[Layer]]]:
        if self.descent is not None:
            yield from self.descent
            return
        lists = (self.attention, self.gradient, self.relevance)
        for number in reversed(range(first, max(map(len, lists)))):
            layer = Layer(*(of[number] if of else torch.empty(0) for of in lists))
            yield partial(iter, (layer,))

    @property
    def batch(self) -> int:
        """The number of samples."""
        return len(self.logits)

    @property
    def tokens(self) -> int:
        """The number of tokens of the input, prefix tokens and padding included."""
        # Behind pooling by attention, or in a decoder, the tokens that are read are others.
        return self.pooling.shape[-1] if self.trace is None else self.trace.sites[0].tokens

    def real(self) -> Tensor:
        """(batch, tokens), true where a token is no padding."""
        if self.padding is None or self.padding.shape != (self.batch, self.tokens):
            return torch.ones(self.batch, self.tokens, dtype=torch.bool, device=self.logits.device)
        return ~self.padding

    def chosen(self, logits: Tensor, samples: Tensor) -> Tensor:
        """The logits of the explained classes, (classes, rows), of rows of these samples."""
        return logits.gather(1, self.classes[samples]).T

    def probabilities(self, logits: Tensor, samples: Tensor) -> Tensor:
        """Probabilities of the explained classes, (classes, rows), of rows of these samples.

        A single logit is a quantity, not a probability, and stays as it is.
        """
        if self.multi_label:
            logits = logits.sigmoid()
        elif logits.shape[1] > 1:
            logits = logits.softmax(1)
        return self.chosen(logits, samples)

    def further(
        self, kinds: Collection[str], gradients: Reading = "plain", class_specific: bool = True
    ) -> Evidence:
        """Other kinds of evidence of the same trace and classes.

        Args:
            kinds: Which of `KINDS`; those that need further forward passes only if this has them.
            gradients: Plain or balanced ones.
            class_specific: Whether rows are pooled for each class.
        """
        assert self.trace is not None
        assert self.rules is not None
        forwards = self.forwards
        return gather(
            self.trace,
            kinds,
            self.classes,
            self.rules,
            self.layout,
            padding=self.padding,
            special=self.special,
            multi_label=self.multi_label,
            gradients=gradients,
            class_specific=class_specific,
            forwards=None if forwards is None else lambda: forwards,
        )

    def to_tokens(self, scores: Tensor) -> Tensor:
        """Scores of pixels, (..., height, width), summed to those of tokens, (..., tokens).

        Prefix tokens stand nowhere on the image and get 0.
        """
        grid = self.layout.grid
        if grid is None:
            raise WhenceError("Only scores of pixels can be summed to patches.")
        height, width = scores.shape[-2:]
        maps = scores.reshape(-1, 1, height, width)
        patches = F.adaptive_avg_pool2d(maps, grid) * (height * width / (grid[0] * grid[1]))
        patches = patches.reshape(*scores.shape[:-2], grid[0] * grid[1])
        return F.pad(patches, (self.layout.prefix or 0, 0))

    def to_inputs(self, weights: Tensor) -> Tensor:
        """Weights of tokens, (rows, tokens), as factors of inputs, (rows, ...): one for each.

        Those of patches cover their pixels; those of prefix tokens are left out.
        """
        assert self.inputs is not None
        grid = self.layout.grid
        if grid is None:
            return weights.reshape(*weights.shape, *[1] * (self.inputs.dim() - 2))
        patches = weights[:, self.layout.prefix or 0 :].reshape(-1, 1, *grid)
        return F.interpolate(patches, size=self.inputs.shape[-2:], mode="nearest")


def gather(
    traced: Trace,
    kinds: Collection[str],
    classes: Tensor,
    rules: RuleSet,
    layout: Layout,
    *,
    padding: Tensor | None = None,
    gradients: Reading = "plain",
    first_layer: int = 0,
    forwards: Callable[[], Forwards] | None = None,
    special: Tensor | None = None,
    multi_label: bool = False,
    class_specific: bool = True,
    layer_by_layer: bool = False,
    release: bool = False,
) -> Evidence:
    """Read the kinds of evidence asked for: one pass for gradients, one for relevance.

    Args:
        traced: The recorded forward pass.
        kinds: Which of `KINDS`.
        classes: (batch, n) class indices.
        rules: The rules for relevance.
        layout: Where tokens stand.
        padding: Which tokens are padding.
        gradients: Plain or balanced ones, or those of AttnLRP.
        first_layer: Below this layer, attention maps are not read; negative counts from the end.
        forwards: Makes what runs the model again.
        special: Which tokens belong to no word.
        multi_label: Whether several classes can hold at once.
        class_specific: Whether rows are pooled as each class weighs them. Otherwise all are pooled
            as the predicted class does, so that what is read of them is the same for every class.
        layer_by_layer: Whether attention maps are read only as `Evidence.fused` asks for them.
        release: Whether to let go of what has been read then, so that the trace is of no more use.
    """
    blocks = _blocks(traced, set(kinds))
    places = Places(traced, blocks, first_layer)
    descent, at_maps = None, {"attention", "gradient", "relevance"} & set(kinds)
    if layer_by_layer:
        kinds = set(kinds) - at_maps
        descent = places.descend(at_maps, classes, reading(gradients), rules, release)
    gradient = places.read("gradient", kinds, classes, reading(gradients))
    relevance = places.read("relevance", kinds, classes, rules)
    hidden = places.hidden_values() if "hidden" in kinds else []
    # From here on, operations may be let go of.
    read = classes if class_specific else traced.logits.detach().argmax(1, keepdim=True)
    known = gradient["gradient"][-1:] if class_specific else []
    if descent is not None and "gradient" in at_maps and class_specific:
        first = next(descent)
        descent, last = chain((first,), descent), first
    elif known:
        last = partial(iter, (Layer(known[0], known[0], known[0]),))
    else:
        top = Places(traced, blocks, -1)
        last = next(top.descend({"gradient"}, read, None, rules, release=False))
    pooling = compute_pooling(_dependence(last), layout)
    return Evidence(
        descent=descent,
        pooling=pooling.expand(classes.shape[1], -1, -1),
        classes=classes,
        logits=traced.logits.detach(),
        layout=layout,
        padding=padding,
        attention=traced.attention() if "attention" in kinds else [],
        gradient=gradient["gradient"],
        relevance=relevance["relevance"],
        inputs=places.input.detach() if {"inputs", "forwards"} & set(kinds) else None,
        input_gradient=_only(gradient["input_gradient"]),
        input_relevance=_only(relevance["input_relevance"]),
        hidden=hidden,
        hidden_gradient=gradient["hidden_gradient"],
        hidden_relevance=relevance["hidden_relevance"],
        attended=places.attended_values() if "attended" in kinds else [],
        attended_gradient=gradient["attended_gradient"],
        blocks=blocks,
        forwards=forwards() if forwards is not None and "forwards" in kinds else None,
        trace=traced,
        rules=rules,
        special=special,
        multi_label=multi_label,
    )


def _blocks(traced: Trace, kinds: set[str]) -> list[Block]:
    """The blocks that these kinds of evidence are found by."""
    if {"attended", "attended_gradient", "blocks"} & kinds:
        return find_blocks(traced)
    if not {"hidden", "hidden_gradient", "hidden_relevance"} & kinds:
        return []
    # What leaves the last block enters pooling by attention, which has no block of its own.
    return find_blocks(traced, len(traced.sites) > 1 and pools(traced, find_streams(traced)))


def _dependence(layer: Callable[[], Iterator[Layer]]) -> Tensor:
    """How strongly the logit depends on each query of a layer: (classes, batch, queries)."""
    parts = [part.gradient.abs().sum((-3, -1)) for part in layer()]
    return torch.stack(parts).sum(0)


def _only(readings: list[Tensor]) -> Tensor | None:
    return readings[0] if readings else None


_OF_CLASSES = (
    *("gradient", "relevance", "input_gradient", "input_relevance", "hidden_gradient"),
    *("hidden_relevance", "attended_gradient"),
)


def joined(parts: Sequence[Evidence], one_target: bool) -> Evidence:
    """The evidence of several groups of classes in one, classes after the batch dimension."""

    def join(readings: Sequence[Tensor]) -> Tensor:
        whole = torch.cat(list(readings)).movedim(0, 1)
        return whole[:, 0] if one_target else whole

    def values(part: Evidence) -> Iterator[tuple[str, object]]:
        return ((f.name, getattr(part, f.name)) for f in fields(part))

    whole = dict(values(parts[0]))
    for name in _OF_CLASSES:
        readings = [getattr(part, name) for part in parts]
        if isinstance(readings[0], list):
            whole[name] = [join(layer) for layer in zip(*readings, strict=True)]
        elif readings[0] is not None:
            whole[name] = join(readings)
    whole["pooling"] = join([part.pooling for part in parts])
    whole["classes"] = torch.cat([part.classes for part in parts], 1)
    # The graph, which is large, is not kept with the readings.
    whole.update(blocks=[], forwards=None, trace=None, found=[], descent=None)
    return Evidence(**whole)  # type: ignore[arg-type]
