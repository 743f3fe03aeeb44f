"""One forward pass of an unmodified model, to be read as attention, gradient or relevance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.tracing.attention import AttentionSite
from whence.tracing.operations import Tape
from whence.tracing.recorder import Recorder, refuse_relevance
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
        seeds = torch.zeros(
            classes.shape[1], *self.logits.shape, dtype=self.logits.dtype, device=classes.device
        ).scatter_(2, classes.T[..., None], 1)
        several = len(seeds) > 1
        self.tape.rules = rules
        try:
            readings = torch.autograd.grad(
                self.logits,
                list(tensors),
                seeds if several else seeds[0],
                retain_graph=True,
                is_grads_batched=several,
                materialize_grads=True,
            )
        finally:
            self.tape.rules = None
        return [reading if several else reading[None] for reading in readings]


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    main: str | int,
    output: Callable[[Any], Tensor] | None = None,
) -> Trace:
    """Run a model once and record it.

    Args:
        model: Any module; it is not touched.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        main: Which argument is the input to explain, by position or name.
        output: Gets the logits from what the model returns, if it is not obvious.
    """
    model = unwrapped(model)
    stand_in = replicate(model)
    names = {id(module): name for name, module in stand_in.named_modules()}
    recorder = Recorder(Tape(), names)
    for name, module in stand_in.named_modules():
        kind = kind_of_module(module)
        if kind is not None:
            module.__dict__["forward"] = recorder.apply_module(kind, module, name)
    args, kwargs = list(args), dict(kwargs)  # type: ignore[assignment]
    with torch.inference_mode(False), torch.enable_grad():
        holder: Any = args if isinstance(main, int) else kwargs
        holder[main] = recorder.begin(holder[main])
        with recorder:
            returned = stand_in(*args, **kwargs)
    logits = output(returned) if output is not None else find_logits(returned)
    _check_logits(logits, recorder.tape.batch)
    if not recorder.sites:
        raise WhenceError(
            f"No attention was seen in {type(model).__name__}. whence explains Transformers: "
            "softmax weights multiplied with values, by scaled_dot_product_attention, "
            "nn.MultiheadAttention, matmul, bmm or einsum. If the model hides attention in a "
            'kernel of its own (flash attention), load it with attn_implementation="sdpa" or '
            '"eager".'
        )
    _refuse_foreign_functions(logits, recorder.tape)
    return Trace(logits, recorder.sites, recorder.grids, recorder.inputs, recorder.tape)


def find_logits(returned: Any) -> Tensor:
    """The logits in what a model returned: a tensor, `.logits`, or the first tensor of a tuple."""
    if isinstance(returned, Tensor):
        return returned
    logits = getattr(returned, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(returned, dict) and isinstance(returned.get("logits"), Tensor):
        return returned["logits"]  # type: ignore[no-any-return]
    if isinstance(returned, tuple) and returned and isinstance(returned[0], Tensor):
        return returned[0]
    raise WhenceError(
        f"The model returned {type(returned).__name__}, in which whence finds no logits. Say where "
        f"they are: Explainer(model, output=lambda returned: ...)."
    )


def _check_logits(logits: Tensor, batch: int) -> None:
    if logits.dim() != 2 or logits.shape[0] != batch:
        raise WhenceError(
            f"Logits of shape (batch, classes) are needed, but the model gave "
            f"{tuple(logits.shape)} for {batch} input(s). Pick what to explain: "
            f"Explainer(model, output=lambda returned: ...)."
        )
    if not logits.requires_grad:
        raise WhenceError(
            "The logits do not depend on the input in a way that whence can follow: the model "
            "computes them without gradients."
        )


def _refuse_foreign_functions(logits: Tensor, tape: Tape) -> None:
    """Keep relevance from passing, unseen, an autograd function that the model brought along."""
    seen: set[Any] = set()
    waiting: list[Any] = [logits.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction) and not hasattr(
            node, "operation"
        ):
            name = type(node).__name__.removesuffix("Backward")
            refuse_relevance(node, tape, name, "an autograd function of the model's own")
        waiting.extend(behind for behind, _ in node.next_functions)
