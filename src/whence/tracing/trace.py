"""One forward pass of an unmodified model, to be read as attention, gradient or relevance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from whence.engine.compiled.program import answer, is_written_down
from whence.errors import WhenceError
from whence.rules import RuleSet
from whence.tracing.backward import descend
from whence.tracing.calls import kind_of_module
from whence.tracing.graph.sites import AttentionSite, arrange
from whence.tracing.recorder import Recorder, Run, Step, edge_of
from whence.tracing.replica import replicate, unwrapped
from whence.tracing.tape import Tape


@dataclass
class Trace:
    """A recorded forward pass.

    Attributes:
        logits: (batch, classes), as a plain forward gives them; part of the graph.
        sites: The attention maps, nearest the input first.
        grids: Spatial sizes of convolution outputs.
        inputs: The pixels or embeddings from which everything was followed.
        steps: The recorded operations in their order.
        copies: Nodes of the graph that overwrite the whole of a tensor.
        tape: What the operations share.
        again: Records the same forward pass once more, otherwise.
        remembered: What was found by walking the graph, so that it is walked once.
    """

    logits: Tensor
    sites: list[AttentionSite]
    grids: list[tuple[int, ...]]
    inputs: list[Tensor]
    steps: list[Step]
    copies: set[Any]
    tape: Tape
    again: Callable[..., Trace]
    remembered: dict[str, Any] = field(default_factory=dict, repr=False)
    _samples_first: dict[tuple[Any, int], bool] = field(default_factory=dict, repr=False)

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.tape.batch

    def attention(self) -> list[Tensor]:
        """Each attention map, as (batch, heads, queries, keys)."""
        return [site.by_head(site.weights.detach(), self.tape.batch) for site in self.sites]

    def gradient(self, classes: Tensor, sites: Sequence[AttentionSite] = ()) -> list[Tensor]:
        """Gradient of class logits at attention maps (all of them, unless some are named).

        Args:
            classes: (batch, n) class indices.
            sites: Which maps.

        Returns:
            For each map, (n, batch, heads, queries, keys).
        """
        return self._at_sites(classes, None, sites)

    def relevance(
        self, classes: Tensor, rules: RuleSet, sites: Sequence[AttentionSite] = ()
    ) -> list[Tensor]:
        """Relevance of classes at attention maps, as `gradient` gives gradients."""
        return self._at_sites(classes, rules, sites)

    def _at_sites(
        self, classes: Tensor, rules: RuleSet | None, sites: Sequence[AttentionSite]
    ) -> list[Tensor]:
        sites = sites or self.sites
        readings = self.read(classes, [site.weights for site in sites], rules)
        return [
            site.by_head(reading, self.tape.batch)
            for site, reading in zip(sites, readings, strict=True)
        ]

    def read(
        self,
        classes: Tensor,
        places: Sequence[Tensor | GradientEdge],
        rules: RuleSet | None = None,
    ) -> list[Tensor]:
        """Gradient, or what rules make of it, of classes at any places of the graph.

        Both start from a one-hot vector at the logits, and go down only as far as is asked for. All
        classes go down together.

        Returns:
            For each place, a tensor of its shape with the classes as a new first dimension.
        """
        found = dict(self.descend(classes, places, [rules]))
        return [found[number][0] for number in range(len(places))]

    def descend(
        self,
        classes: Tensor,
        places: Sequence[Tensor | GradientEdge],
        readings: Sequence[RuleSet | None],
        *,
        release: bool = False,
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """Several readings at once, handed over place by place on the way down.

        Args:
            classes: (batch, n) class indices.
            places: Where to read.
            readings: How to read: by rules, or None for gradients.
            release: Whether to let go of all that has been passed. The trace can then be read only
                this once.

        Yields:
            The number of a place and its readings, which are as `read` gives them.
        """
        seeds = self.logits.new_zeros(classes.shape[1], *self.logits.shape)
        seeds.scatter_(2, classes.T[..., None], 1.0)
        several = len(seeds) > 1
        seed = seeds if several else seeds[0]
        for number, found in self._descend(places, seed, readings, several, release):
            yield number, found if several else [reading[None] for reading in found]

    def first_sample(self, place: Tensor | GradientEdge) -> Tensor:
        """Gradient of all that the model says of the first sample, somewhere in the graph."""
        return self._of_sample([place], 0)[0]

    def _of_sample(self, places: Sequence[Tensor | GradientEdge], sample: int) -> list[Tensor]:
        seed = torch.zeros_like(self.logits)
        seed[sample] = 1
        found = dict(self._descend(places, seed, [None]))
        return [found[number][0] for number in range(len(places))]

    def find_order(self, places: Sequence[GradientEdge]) -> None:
        """Find, for places of so many rows as there are tokens in all, if samples come first.

        `by_token` does so by itself where shapes do not tell; for many places at once it is faster.
        """
        # A sample says nothing about the rows of others. The first alone does not tell: where a
        # class token is read, it touches only the first row, which is its in either layout.
        of_first, of_last = (self._of_sample(places, at) for at in (0, self.batch - 1))
        for place, first, last in zip(places, of_first, of_last, strict=True):
            rows = self.batch, self.sites[0].tokens, -1
            others = first.reshape(rows)[1:].any() | last.reshape(rows)[:-1].any()
            self._samples_first[place.node, place.output_nr] = not answer(others)

    def by_token(self, reading: Tensor, place: GradientEdge, shape: torch.Size) -> Tensor:
        """A reading at a place whose values have rows of tokens, as (..., batch, tokens, rest).

        Sequences may come before samples, and both may be folded into one dimension.

        Raises:
            WhenceError: The values are not laid out as samples and tokens.
        """
        batch, tokens = self.batch, self.sites[0].tokens
        extra = reading.shape[: reading.dim() - len(shape)]
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
            if (place.node, place.output_nr) not in self._samples_first:
                self.find_order([place])
            samples_first = self._samples_first[place.node, place.output_nr]
        if samples_first:
            return reading.reshape(*extra, batch, tokens, *shape[2:])
        reading = reading.reshape(*extra, tokens, batch, *shape[2:])
        return reading.transpose(len(extra), len(extra) + 1)

    def _descend(
        self,
        places: Sequence[Tensor | GradientEdge],
        seed: Tensor,
        readings: Sequence[RuleSet | None],
        several: bool = False,
        release: bool = False,
    ) -> Iterator[tuple[int, list[Tensor]]]:
        edges = [place if isinstance(place, GradientEdge) else edge_of(place) for place in places]
        going = descend(
            self.logits,
            seed,
            readings,
            edges,
            batch=self.batch,
            several=several,
            release=release,
        )
        while True:
            # Not around the whole loop: what is done with a reading is the caller's own affair.
            with torch.inference_mode(False), torch.no_grad():
                found = next(going, None)
            if found is None:
                return
            yield found


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    main: str | int,
    output: Callable[[Any], Tensor] | None = None,
    run: Run | None = None,
    bound: float | None = None,
    map_bytes: float = math.inf,
) -> Trace:
    """Run a model once and record it.

    Where a model switches gradients off for itself, what it computes there is a constant, as for
    autograd; but if that leaves logits that depend on nothing, the input is followed all the same.

    Args:
        model: Any module; it is not touched.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        main: Which argument is the input to explain, by position or name.
        output: Gets the logits from what the model returns, if it is not obvious.
        run: What is done otherwise than in the model's own forward pass.
        bound: How many bytes the operations may keep.
        map_bytes: Attention whose maps have more bytes than this is recorded without them, and can
            be read by those alone who go down layer by layer.

    Raises:
        WhenceError: The model has no attention, or no logits that whence can follow.
        TooLargeError: The operations keep more than they may.
    """
    for ignore_no_grad in (False, True):
        recorded = _record(model, args, kwargs, main, output, ignore_no_grad, run, bound, map_bytes)
        if recorded is not None:
            return recorded
    raise WhenceError(
        "The logits do not depend on the input in a way that whence can follow. If the model looks "
        "its token ids up in a way of its own, pass embeddings (inputs_embeds) instead of ids."
    )


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    main: str | int,
    output: Callable[[Any], Tensor] | None,
    ignore_no_grad: bool,
    run: Run | None,
    bound: float | None,
    map_bytes: float,
) -> Trace | None:
    """Record a forward pass; None if the logits do not depend on the input."""
    with torch.inference_mode(False), torch.enable_grad():
        stand_in = replicate(model)
        names = {id(module): name for name, module in stand_in.named_modules()}
        recorder = Recorder(names, ignore_no_grad, run, bound, map_bytes)
        whole = [m for m in stand_in.modules() if kind_of_module(m) is not None]
        for module in whole:
            kind = kind_of_module(module)
            assert kind is not None
            module.__dict__["forward"] = recorder.apply_module(kind, module, names[id(module)])
        given: list[Any] = [_usable(value) for value in args]
        named: dict[str, Any] = {name: _usable(value) for name, value in kwargs.items()}
        holder: Any = given if isinstance(main, int) else named
        holder[main] = recorder.begin(holder[main])
        try:
            with recorder:
                returned = stand_in(*given, **named)
                logits = output(returned) if output is not None else find_logits(returned)
            _check_logits(logits, recorder.tape.batch)
            if not logits.requires_grad:
                return None
            if not recorder.sites:
                raise WhenceError(_NO_ATTENTION.format(type(unwrapped(model)).__name__))
            recorded = Trace(
                logits,
                recorder.sites,
                recorder.grids,
                recorder.inputs,
                recorder.steps,
                recorder.copies,
                recorder.tape,
                partial(trace, model, args, kwargs, main, output),
            )
            if run is None or run.constants:
                recorder.finish(logits)
                arrange(recorded.sites, recorded.batch, lambda s: recorded.first_sample(s.place))
                if any(site.heads_first and site.output is not None for site in recorded.sites):
                    # Their maps can be computed again for some samples only, not for some heads.
                    return recorded.again(run, bound=bound)
            return recorded
        finally:
            recorder.forget()
            for module in whole:
                del module.__dict__["forward"]


_NO_ATTENTION = (
    "No attention was seen in {}. whence explains Transformers: softmax weights multiplied with "
    "values, by scaled_dot_product_attention, nn.MultiheadAttention, matmul, bmm or einsum. If the "
    "model hides attention in a kernel of its own (flash attention), load it with "
    'attn_implementation="sdpa" or "eager".'
)


def _usable(value: Any) -> Any:
    """An input that autograd can work with."""
    inferred = isinstance(value, Tensor) and value.is_inference()
    return value.clone() if inferred else value


def find_logits(returned: Any) -> Tensor:
    """The logits in what a model returned: a tensor, `.logits`, or the first of a sequence."""
    if isinstance(returned, Tensor):
        return returned
    logits = getattr(returned, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(returned, dict) and isinstance(returned.get("logits"), Tensor):
        return returned["logits"]  # type: ignore[no-any-return]
    if isinstance(returned, tuple | list) and returned and isinstance(returned[0], Tensor):
        return returned[0]
    raise WhenceError(
        f"The model returned {type(returned).__name__}, in which whence finds no logits. Say where "
        f"they are: Explainer(model, output=lambda returned: ...)."
    )


def _check_logits(logits: Any, batch: int) -> None:
    if not isinstance(logits, Tensor):
        raise WhenceError(f"output(...) must return the logits, not {type(logits).__name__}.")
    if logits.dim() != 2 or logits.shape[0] != batch:
        raise WhenceError(
            f"Logits of shape (batch, classes) are needed, but the model gave "
            f"{tuple(logits.shape)} for {batch} input(s). Pick what to explain: "
            f"Explainer(model, output=lambda returned: ...)."
        )
    if is_written_down(logits):
        return  # whoever runs it looks at what comes out
    if not torch.isfinite(logits).all():
        raise WhenceError("The model gives NaN or infinite logits for these inputs.")
