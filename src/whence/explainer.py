"""A model and inputs in, an explanation out."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whence import methods
from whence import rules as rule_sets
from whence._util.defaults import METHOD
from whence.engine.compiled.cache import Found, Replays
from whence.engine.request import Request, check_memory, is_plain
from whence.engine.result import Part, even
from whence.errors import TooLargeError, WhenceError
from whence.evidence import Evidence, gather, joined
from whence.evidence.forwards import Forwards, most_bytes
from whence.explanation import Explanation
from whence.inputs.arguments import Call
from whence.layout import Layout, Tokens, find_layout, find_tokens
from whence.methods import Method
from whence.rules import RuleSet
from whence.targets import find_class_names, resolve_classes, select_samples
from whence.tracing.ops.products import Precision, check_precision, products_in
from whence.tracing.replica import unwrapped
from whence.tracing.trace import Trace, trace
from whence.version import __version__

# Classes are explained together, in groups that keep samples x classes to about this number.
_MAPS_AT_ONCE = 64
# The part of the memory that the attention maps of one layer may take; several are in use at once.
_OF_A_MAP = 1 / 16
_KEPT = ("attention", "gradient", "relevance")
_COARSE = (torch.float16, torch.bfloat16)


class _Scored(NamedTuple):
    """What a method says of a trace."""

    scores: Tensor
    layout: Layout
    told: list[list[dict[str, Any]]]
    evidence: list[Evidence]


class Explainer:
    """Explains the decisions of one model, which is left exactly as it was found.

    Args:
        model: Any module with softmax attention that maps inputs to logits (batch, classes).
        class_names: Names of the classes, if the model does not carry them.
        tokenizer: To know tokens and words when inputs are plain ids.
        layout: What cannot be found from the model: patch grid, prefix tokens, pooled tokens.
        output: Gets the logits from what the model returns, if it is not obvious.
        fast: Whether to compile what is done to a batch, for inputs of the same shape. The first
            call is not yet faster, and the second takes up to a minute longer. Weights may change
            in between; a model that is changed otherwise (by hooks, other attributes or another
            mode) needs an Explainer of its own.
        precision: In what matrix products are computed, if not in the type of the weights:
            ``"tf32"`` on a GPU, or ``"bfloat16"``. Both are faster and coarser: the scores of
            `tiba` are off by about 0.2 % and 2 %. TF32 is a switch of torch's for all threads,
            which is put back afterwards.

    Example:
        >>> result = Explainer(model).explain(pixels, target="tabby")  # doctest: +SKIP
        >>> result.heatmap()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        class_names: Sequence[str] | Mapping[int, str] | None = None,
        tokenizer: Any = None,
        layout: Layout | None = None,
        output: Callable[[Any], Tensor] | None = None,
        fast: bool = False,
        precision: Precision | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise WhenceError(f"A torch.nn.Module is needed, not {type(model).__name__}.")
        self.model = model
        self.tokenizer = tokenizer
        self.layout = Layout() if layout is None else layout
        if not isinstance(self.layout, Layout):
            raise WhenceError(f"layout is a whence.Layout, not {layout!r}.")
        self.output = output
        self.fast = fast
        check_precision(precision)
        self.precision = precision
        self._replays = Replays(model)
        self._class_count: int | None = None
        self._bytes_of_sample: dict[Any, float] = {}
        if class_names is None:
            self.class_names = find_class_names(unwrapped(model))
        elif isinstance(class_names, Mapping):
            self.class_names = {int(index): str(name) for index, name in class_names.items()}
        else:
            self.class_names = dict(enumerate(map(str, class_names)))

    def explain(
        self,
        inputs: Tensor | Mapping[str, Any],
        target: Any = None,
        classes: Any = None,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        keep_evidence: bool = False,
        memory: float | None = None,
        **options: Any,
    ) -> Explanation:
        """Say from which parts of each input a decision came.

        Args:
            inputs: A batch as the model takes it: a tensor, or a mapping of tensors such as a
                tokenizer or an image processor returns.
            target: The class to explain: None for the predicted one, an index, a name, or one for
                each sample.
            classes: Instead of target, several classes at once: indices or names, or a number k for
                the top k. They share one forward pass.
            method: Any of ``methods.available()``.
            rules: How relevance passes operations: ``"stable"``, ``"reference"``, ``"paper"``,
                or a rule set of your own.
            keep_evidence: Whether to return the attention, gradient and relevance of each layer,
                and what else the method worked with.
            memory: Gibibytes that a forward pass may keep for the way back, or that methods of many
                forward passes may take for them; larger batches go in parts. If left out, half of
                a GPU's free memory, or 2 on a CPU; for the way back no more than 4.
            **options: Options of the method, such as ``start_layer``.

        Returns:
            The scores of patches or tokens, and what they belong to.

        Raises:
            WhenceError: Something is wrong with the model, the inputs or the request.
        """
        built = methods.build(method, options)
        check_memory(memory)
        rule_set = rule_sets.get(rules)
        if rule_set.name != "stable" and not (built.propagates or keep_evidence):
            warnings.warn(
                f"Method '{methods.describe(method).name}' propagates no relevance, so that "
                f"rules='{rule_set.name}' changes nothing. Methods that do: "
                f"{', '.join(n for n in methods.available() if methods.get(n)().propagates)}.",
                stacklevel=2,
            )
        call = Call.of(inputs, self.model)
        request = Request(built, method, rule_set, target, classes, keep_evidence, memory)
        # Whatever surrounds the call, explanations are computed in the precision of the weights.
        off = torch.autocast(call.main.device.type, enabled=False)
        with off, torch.inference_mode(False), products_in(self.precision):
            part = self._in_parts(call, request)
        indices, layout, logits = part.indices, part.layout, part.logits
        if built.propagates and logits.dtype in _COARSE:
            warnings.warn(
                f"Relevance in {logits.dtype} is too coarse to be conserved; explain a "
                f"float32 copy of the model.",
                stacklevel=2,
            )
        settings = {"rules": rule_set.name} if built.propagates else {}
        settings |= {} if self.precision is None else {"precision": self.precision}
        # One target is a class dimension of length 1, which the user did not ask for.
        many = classes is not None
        chosen = (slice(None), slice(None) if many else 0)
        return Explanation(
            scores=part.scores[chosen],
            target=indices[chosen],
            logits=logits,
            grid=layout.grid,
            image_size=tuple(call.main.shape[-2:]) if layout.grid else None,  # type: ignore[arg-type]
            tokens=part.tokens,
            target_names=self._names(indices[chosen].tolist()),
            multi_label=_is_multi_label(self.model),
            method=methods.describe(method).name,
            class_specific=built.class_specific,
            settings=settings | dataclasses.asdict(built),  # type: ignore[call-overload]
            found=(part.told if many else [one for (one,) in part.told]) or None,
            version=__version__,
            evidence=joined(part.evidence, one_target=not many) if keep_evidence else None,
        )

    def _in_parts(self, call: Call, request: Request) -> Part:
        """An explanation of as many samples at a time as memory allows."""
        batch = len(call.main)
        bound = most_bytes(call.main.device, request.memory)
        if request.keep_evidence or "forwards" in request.method.needs:
            return self._part(call, request, slice(0, batch))
        # Rules that look at all heads at once need all of their maps.
        in_parts = request.method.layer_by_layer and request.rules.in_parts
        map_bytes = bound * _OF_A_MAP if in_parts else math.inf
        shapes = _shapes(call), in_parts
        parts: list[tuple[Part, int]] = []
        start, at_once = 0, batch
        while start < batch:
            # How much a sample takes is known once one was explained.
            sample = self._bytes_of_sample.get(shapes)
            if sample is not None:
                at_once = even(batch, int(bound / sample))
            rows = slice(start, min(start + at_once, batch))
            if self.fast:  # which knows one shape: rather some samples twice than another shape
                rows = slice(max(0, rows.stop - at_once), rows.stop)
            try:
                limit = bound if at_once > 1 else None
                part = self._part(call, request, rows, limit, map_bytes)
            except TooLargeError:
                at_once = (at_once + 1) // 2
                if sample is not None:  # others took less
                    self._bytes_of_sample[shapes] = bound / at_once
                continue
            parts.append((part, rows.stop - start))
            start = rows.stop
        # A GPU is waited for when all has been asked of it.
        return Part.joined([part.sound().last(samples) for part, samples in parts])

    def _part(
        self,
        call: Call,
        request: Request,
        rows: slice,
        bound: float | None = None,
        map_bytes: float = math.inf,
    ) -> Part:
        """The explanation of some samples."""
        target, classes = select_samples(request.target, request.classes, rows, len(call.main))
        request = request._replace(target=target, classes=classes)
        image = call.main.dim() == 4
        tokens = None if image else find_tokens(call.kwargs, call.main, self.tokenizer)
        tokens = None if tokens is None else tokens.select_samples(rows)
        if rows != slice(0, len(call.main)):
            call = call.rows(rows)
        special = _special(tokens, call.main.device)

        compute = partial(self._computed, call, request, tokens, special, map_bytes)
        found = self._replayed(call, request, special, map_bytes)
        if found is None:
            return compute(bound)
        words = None if found.layout.grid else tokens
        return Part(*found[:3], found.layout, words, [], [], (found.sound, compute))

    def _computed(
        self,
        call: Call,
        request: Request,
        tokens: Tokens | None,
        special: Tensor | None,
        map_bytes: float,
        bound: float | None = None,
    ) -> Part:
        """An explanation by shortcuts, unless these turn out to be too coarse."""
        for exact in (False, True):
            traced = self._trace(call, bound, map_bytes)
            traced.tape.exact = exact
            logits = traced.logits.detach()
            self._class_count = logits.shape[1]
            indices = resolve_classes(logits, self.class_names, request.target, request.classes)
            kept = traced.tape.kept_bytes / len(logits)
            self._bytes_of_sample.setdefault((_shapes(call), math.isfinite(map_bytes)), kept)
            scored = self._scored(traced, call, request, indices, special)
            if not traced.tape.in_doubt():
                break
        _check_finite(scored.scores, request.name)
        tokens = None if scored.layout.grid else tokens
        return Part(scored.scores, indices, logits, scored.layout, tokens, *scored[2:])

    def _replayed(
        self, call: Call, request: Request, special: Tensor | None, map_bytes: float
    ) -> Found | None:
        """What a recorded run gives, if there is one and it can be trusted."""
        method = request.method
        if not self.fast or request.keep_evidence:
            return None
        highest = request.highest
        if "forwards" in method.needs or (highest is None and self._class_count is None):
            return None
        others = {k: v for k, v in call.kwargs.items() if not isinstance(v, Tensor)}
        if not is_plain(others):
            return None  # tensors inside of it would stay as they were when it was recorded
        inputs = {f"argument {n}": tensor for n, tensor in enumerate(call.tensors)}
        if highest is None:
            like = torch.empty(len(call.main), self._class_count or 0)
            try:
                indices = resolve_classes(like, self.class_names, request.target, request.classes)
            except WhenceError:
                return None  # the model may have other classes by now: the plain way tells
            inputs["classes"] = indices.to(call.main.device)
        if special is not None:
            inputs["special"] = special

        def compute(given: Mapping[str, Tensor]) -> Found:
            here = call.with_tensors(given[name] for name in given if name.startswith("argument"))
            traced = self._trace(here, None, map_bytes)
            logits = traced.logits.detach()
            named = given.get("classes")
            classes = resolve_classes(logits, {}, None, request.classes) if named is None else named
            scored = self._scored(traced, here, request, classes, given.get("special"))
            sound = torch.isfinite(logits).all() & torch.isfinite(scored.scores).all()
            doubt = traced.tape.doubt()
            sound = sound if doubt is None else sound & ~doubt
            return Found(scored.scores, classes, logits, sound, scored.layout)

        how = self.precision, torch.get_float32_matmul_precision()
        here = repr(self.layout), self.output, *how
        asked = method, request.rules, highest, map_bytes, tuple(call.kwargs), repr(others)
        return self._replays.run((*here, *asked), inputs, compute)

    def _scored(
        self,
        traced: Trace,
        call: Call,
        request: Request,
        indices: Tensor,
        special: Tensor | None,
    ) -> _Scored:
        method, keep_evidence = request.method, request.keep_evidence
        layout = find_layout(self.layout, traced.sites[0].tokens, call.main, traced.grids)
        _check_inputs(request.name, method, layout)
        kinds = {*method.needs, *(_KEPT if keep_evidence else ())}
        # Gradients that the method does not work with are kept as everyone knows them.
        apart = {"gradient"} & kinds - set(method.needs)
        scores, evidence, told = [], [], []
        groups = torch.split(indices, _classes_at_once(method, kinds, indices), 1)
        for group in groups:
            found = gather(
                traced,
                kinds - apart,
                group,
                request.rules,
                layout,
                padding=call.padding,
                special=special,
                multi_label=_is_multi_label(self.model),
                class_specific=method.class_specific,
                gradients=getattr(method, "gradients", "plain"),
                first_layer=0 if keep_evidence else method.first_layer,
                layer_by_layer=method.layer_by_layer and not keep_evidence,
                release=group is groups[-1],
                forwards=lambda: Forwards(self.model, call, self.output, traced, request.memory),
            )
            scores.append(_units(method(found), layout, call.padding))
            told.append(found.found)
            if keep_evidence:
                found.gradient = found.gradient or found.further(apart).gradient
                evidence.append(found)
        by_sample = [[fact for part in parts for fact in part] for parts in zip(*told, strict=True)]
        return _Scored(torch.cat(scores, 1), layout, by_sample, evidence)

    def _trace(self, call: Call, bound: float | None, map_bytes: float) -> Trace:
        try:
            return trace(
                self.model,
                call.args,
                dict(call.kwargs),
                call.main_at,
                self.output,
                bound=bound,
                map_bytes=map_bytes,
            )
        except (WhenceError, TooLargeError):
            raise
        except Exception as error:
            if call.main.is_floating_point() and call.main.dim() == 3:
                raise WhenceError(
                    f"The model failed on an input of shape {tuple(call.main.shape)}: {error}. If "
                    f"that is one image, add the batch dimension: inputs[None]."
                ) from error
            raise

    def _names(self, index: Any) -> Any:
        """Names of class indices, in the same nesting; None if the classes have none."""
        if isinstance(index, list):
            names = [self._names(one) for one in index]
            return None if None in names else names
        return self.class_names.get(index, str(index)) if self.class_names else None


def _shapes(call: Call) -> tuple[tuple[int, ...], ...]:
    """The shapes of one sample, which say how much memory it takes."""
    return tuple(tuple(tensor.shape[1:]) for tensor in call.tensors)


def _special(tokens: Tokens | None, device: torch.device) -> Tensor | None:
    """(batch, tokens), true where a token belongs to no word."""
    if tokens is None:
        return None
    return torch.tensor([[w is None for w in row] for row in tokens.words], device=device)


def _is_multi_label(model: nn.Module) -> bool:
    config = getattr(unwrapped(model), "config", None)
    return getattr(config, "problem_type", None) == "multi_label_classification"


def _check_finite(scores: Tensor, method: str) -> None:
    if not torch.isfinite(scores).all():
        raise WhenceError(
            f"Method '{method}' computed NaN or infinite scores: numbers grew beyond what "
            f"{scores.dtype} holds. Explain a copy of the model in a wider type, model.double()."
        )


def _check_inputs(name: str, method: Method, layout: Layout) -> None:
    kind = "text" if layout.grid is None else "image"
    if kind not in method.inputs:
        raise WhenceError(
            f"Method '{name}' explains {' and '.join(method.inputs)}s only, and this input is "
            f"{'a text' if kind == 'text' else 'an image'}."
        )


def _classes_at_once(method: Method, kinds: Collection[str], indices: Tensor) -> int:
    """All of them, unless readings of each would fill the memory."""
    batch, classes = indices.shape
    # Methods of many passes that have an option for gradients read them by themselves.
    of_classes = hasattr(method, "gradients") or any(
        "gradient" in kind or "relevance" in kind for kind in kinds
    )
    return max(1, _MAPS_AT_ONCE // batch) if of_classes else classes


def _units(scores: Tensor, layout: Layout, padding: Tensor | None) -> Tensor:
    """Scores of tokens, (classes, batch, tokens), as those of units, (batch, classes, units)."""
    scores = scores.movedim(0, 1)[..., layout.prefix :]
    if padding is not None and padding.shape == (scores.shape[0], scores.shape[-1]):
        scores = scores.masked_fill(padding[:, None], 0)
    return scores
