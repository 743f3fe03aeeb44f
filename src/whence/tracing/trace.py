"""One forward pass of an unmodified model, to be read as attention, gradient or relevance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.tracing.attention import AttentionSite, arrange
from whence.tracing.operations import Tape
from whence.tracing.recorder import Recorder
from whence.tracing.replica import replicate, unwrapped
from whence.tracing.rules import RuleSet
from whence.tracing.spelling import kind_of_module


@dataclass
class Trace:
    """A recorded forward pass.

    Attributes:
        logits: (batch, classes), as a plain forward gives them; part of the graph.
        sites: The attention maps, nearest the input first.
        grids: Spatial sizes of convolution outputs.
        inputs: The pixels or embeddings from which everything was followed.
        tape: What the recorded operations share.
    """

    logits: Tensor
    sites: list[AttentionSite]
    grids: list[tuple[int, ...]]
    inputs: list[Tensor]
    tape: Tape

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
        self, classes: Tensor, tensors: Sequence[Tensor], rules: RuleSet | None = None
    ) -> list[Tensor]:
        """Gradient, or relevance under rules, of classes at any tensors of the graph.

        Both start from a one-hot vector at the logits, and go down only as far as is asked for. All
        classes go down together.

        Returns:
            For each tensor, a tensor of its shape with the classes as a new first dimension.
        """
        seeds = self.logits.new_zeros(classes.shape[1], *self.logits.shape)
        seeds.scatter_(2, classes.T[..., None], 1)
        several = len(seeds) > 1
        self.tape.rules = rules
        try:
            readings = self._backward(tensors, seeds if several else seeds[0], several)
        finally:
            self.tape.rules = None
        return [reading if several else reading[None] for reading in readings]

    def first_sample(self, site: AttentionSite) -> Tensor:
        """Gradient of all that the model says of the first sample, at an attention map."""
        seed = torch.zeros_like(self.logits)
        seed[0] = 1
        return self._backward([site.weights], seed)[0]

    def _backward(
        self, tensors: Sequence[Tensor], seed: Tensor, several: bool = False
    ) -> tuple[Tensor, ...]:
        with torch.inference_mode(False):
            return torch.autograd.grad(
                self.logits,
                list(tensors),
                seed,
                retain_graph=True,
                is_grads_batched=several,
                materialize_grads=True,
            )


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    main: str | int,
    output: Callable[[Any], Tensor] | None = None,
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

    Raises:
        WhenceError: The model has no attention, or no logits that whence can follow.
    """
    for ignore_no_grad in (False, True):
        recorded = _record(model, args, kwargs, main, output, ignore_no_grad)
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
) -> Trace | None:
    """Record a forward pass; None if the logits do not depend on the input."""
    with torch.inference_mode(False), torch.enable_grad():
        stand_in = replicate(model)
        names = {id(module): name for name, module in stand_in.named_modules()}
        recorder = Recorder(names, ignore_no_grad)
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
            recorder.finish(logits)
            recorded = Trace(logits, recorder.sites, recorder.grids, recorder.inputs, recorder.tape)
            arrange(recorded.sites, recorder.tape.batch, recorded.first_sample)
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
    if not torch.isfinite(logits).all():
        raise WhenceError("The model gives NaN or infinite logits for these inputs.")
