"""Checks: what is verified of every result, and what is said of it.

Figures are measured while an explanation runs: for each sample how far a promise is from being
kept, 0 where it holds. In the end they are judged: what fails is an error, what is in doubt a
warning, and all are kept with the explanation. Dear ones are measured with ``verify=True`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from whence.engine.request import Request, Result
from whence.engine.targets import is_generative
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.evidence.plain import run_plainly
from whence.explanation import Check
from whence.inputs.arguments import is_text
from whence.layout import FoundLayout
from whence.rules import RuleSet
from whence.tracing import Trace, replicate
from whence.tracing.coverage import measure_around
from whence.tracing.ops.base import Operation, Values

Figures = dict[str, Tensor]

# Types in which relevance is too coarse to be conserved.
_COARSE = (torch.float16, torch.bfloat16)


def merge(figures: list[Figures]) -> Figures:
    """The figures of several groups of classes as one: the worst of each sample."""
    merged: Figures = {}
    for one in figures:
        for name, values in one.items():
            merged[name] = torch.maximum(merged[name], values) if name in merged else values
    return merged


def check_modality(request: Request, layout: FoundLayout) -> None:
    """Refuse an input of a kind that a method does not explain."""
    name, method = request.method_name, request.method
    kind = "image" if len(layout.grid or ()) > 1 else "text"
    kinds = {kind, "image prompt"} if _has_image_prompt(request) else {kind}
    if kinds.isdisjoint(method.inputs):
        raise WhenceError(
            f"Method '{name}' explains {' and '.join(method.inputs)}s only, and this input is "
            f"{'a text' if kind == 'text' else 'an image'}."
        )


def _has_image_prompt(request: Request) -> bool:
    """Whether a language model reads images beside words."""
    tensors = request.arguments.named_tensors.items()
    return is_generative(request.subject) and len({is_text(name, x) for name, x in tensors}) > 1


# Measuring ---------------------------------------------------------------------------------------


def measure_trace(request: Request, evidence: Evidence) -> Figures:
    """Measure what a recorded forward pass tells, before a method reads and frees it."""
    figures: Figures = {}
    if request.method.scores_tokens:
        copies = request.method.scores_copies(evidence)
        around = measure_around(evidence.trace, lambda: evidence.make_seeds(None), copies)
        if around is not None:
            figures["coverage"] = around
    if request.verify and request.method.propagates and request.rules.conserves:
        figures["conservation"] = _measure_operations(request.rules, evidence)
    return figures


def _measure_operations(rules: RuleSet, evidence: Evidence) -> Tensor:
    """Measure how much relevance operations add or lose in all, of what a target starts with."""
    worst = torch.zeros((), dtype=torch.float64, device=evidence.logits.device)
    for seeds in evidence.make_seeds(rules):  # what is noted must not be inside of a vmap
        watched = _WatchedRules(rules)
        evidence.trace.read(seeds[None], evidence.trace.leaves, watched)
        gaps = torch.stack(watched.gaps).sum() / seeds.double().abs().sum()
        worst = torch.maximum(worst, gaps)
    return worst.expand(evidence.batch)


class _WatchedRules:
    """Rules that note how much relevance each operation adds or loses."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self.name = rules.name
        self.supports_partial = rules.supports_partial
        self.scales_by_sums = rules.scales_by_sums
        self.reads_linear = rules.reads_linear
        self.attention_factors = rules.attention_factors
        self.gaps: list[Tensor] = []

    def prepare(self, trace: Trace) -> None:
        """As the rules do."""
        self._rules.prepare(trace)

    def supports_classes(self, operation: Operation) -> bool:
        """As the rules do."""
        return self._rules.supports_classes(operation)

    def propagate(self, operation: Operation, value: Tensor) -> Values:
        """As the rules do."""
        shares = self._rules.propagate(operation, value)
        total = sum(share.double().sum() for share in shares if share is not None)
        self.gaps.append((total - value.double().sum()).abs())
        return shares


def measure_scores(request: Request, evidence: Evidence, scores: Tensor) -> Figures:
    """Measure what the scores of a method, (classes, batch, tokens), should sum to."""
    figures: Figures = {}
    method = request.method
    if method.completes:
        baseline = evidence.forwards.make_baseline(getattr(method, "baseline", 0.0))
        samples = torch.arange(evidence.batch, device=evidence.logits.device)
        before = evidence.targets.values(evidence.forwards(baseline, samples), samples)
        after = evidence.targets.values(evidence.logits, samples)
        figures["completeness"] = _compare(scores.sum(-1), after - before, after).amax(0)
    if request.rules.conserves and "input_relevance" in method.needs:
        parts = [value.flatten(2).sum(2) for value in evidence.input_relevance]
        # Where embeddings do not begin with the samples, only their sum is known.
        by_sample = [p if p.shape[1] == evidence.batch else p.mean(1, True) for p in parts]
        total = torch.stack([p.expand(-1, evidence.batch) for p in by_sample]).sum(0)
        seeds = evidence.make_seeds(request.rules).to(total.dtype)
        most, least = seeds.clamp_min(0).sum(2), seeds.clamp_max(0).sum(2)
        beyond = torch.maximum(total - most, least - total).clamp_min(0)
        figures["conservation"] = (beyond / (most - least)).amax(0)
    return figures


def _compare(found: Tensor, expected: Tensor, scale: Tensor) -> Tensor:
    """How far numbers are from those expected, relative to them, or to a thousandth of a scale."""
    size = torch.maximum(expected.abs(), scale.abs() / 1000)
    return (found - expected).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)


@torch.no_grad()
def measure_logits(request: Request, logits: Tensor) -> Figures:
    """Measure how far logits are from those of a forward pass that nobody watches."""
    subject, arguments = request.subject, request.arguments
    plain = run_plainly(replicate(subject.model), arguments, request.output)
    return {"logits": compare_logits(logits, plain)}


def compare_logits(logits: Tensor, plain: Tensor) -> Tensor:
    """How far the logits of each sample are from those of a plain forward pass, by their size."""
    size = plain.abs().amax(1).clamp_min(torch.finfo(plain.dtype).tiny)
    return (logits - plain).abs().amax(1) / size


def _round_logits(dtype: torch.dtype, is_coarse: bool) -> float:
    """How far logits may be from those of a plain forward pass, which computes in other ways."""
    return 0.1 if is_coarse else 3.0 * float(torch.finfo(dtype).eps) ** 0.5


# Judging -----------------------------------------------------------------------------------------


class _Verdict(NamedTuple):
    """What a figure means.

    Attributes:
        passed: The sentence where it holds.
        doubt: The sentence, with the figure in it, where it is in doubt.
        may_be: Beyond this it is in doubt.
        must_be: Beyond this the result is refused.
        shown: The figure that a user sees, given the one that was measured.
    """

    passed: str
    doubt: str
    may_be: float
    must_be: float
    shown: Callable[[float], float] = float


_VERDICTS = {
    "logits": _Verdict(
        "The logits are those of a plain forward pass.",
        "The logits differ by {:.2g} of their size from those of a plain forward pass, so that "
        "what was explained is not what the model computes; please report the model.",
        0,
        0,
    ),
    "conservation": _Verdict(
        "Relevance is conserved on its way to the input.",
        "{:.1%} of the relevance was lost or added on its way to the input; explain a copy of the "
        "model in a wider type, model.double(), or use a method without relevance rules.",
        0.01,
        0.5,
    ),
    "completeness": _Verdict(
        "The scores sum to the change of the logit from the baseline.",
        "The scores miss the change of the logit from the baseline by {:.1%}; more steps come "
        "nearer.",
        0.05,
        float("inf"),
    ),
    "coverage": _Verdict(
        "All that the target depends on in the input goes through the tokens that were scored.",
        "Only {:.0%} of the target's dependence on the input, as |x * gradient|, goes through the "
        "tokens that were scored; methods at the input, such as 'input_x_gradient', see all of it.",
        0.01,
        0.99,
        lambda missing: 1 - missing,
    ),
}


def judge(request: Request, result: Result, precision: str | None = None) -> list[Check]:
    """Say of each figure what it means.

    Raises:
        WhenceError: A check fails.
    """
    checks = [
        _judge_figure(name, float(result.figures[name].max()), result, precision)
        for name in _VERDICTS
        if name in result.figures
    ]
    return [*checks, _judge_scores(request, result), _judge_layout(request, result)]


def _judge_figure(name: str, figure: float, result: Result, precision: str | None) -> Check:
    verdict = _VERDICTS[name]
    may_be, must_be = verdict.may_be, verdict.must_be
    dtype = result.logits.dtype
    if name == "logits":
        may_be = must_be = _round_logits(dtype, is_coarse=precision is not None)
    if name == "conservation" and dtype in _COARSE:
        must_be = float("inf")
    shown = verdict.shown(figure)
    if figure <= may_be:
        return Check(name, shown, "passed", verdict.passed)
    sentence = verdict.doubt.format(shown)
    if not figure <= must_be:
        raise WhenceError(sentence)
    return Check(name, shown, "doubt", sentence)


def _judge_scores(request: Request, result: Result) -> Check:
    """Judge whether scores tell anything."""
    is_dead = (result.scores == 0).all(-1)
    if request.image_sizes is not None and result.layout.grid is not None:
        is_dead = is_dead[[len(images) > 0 for images in request.image_sizes]]
    dead = int(is_dead.sum())
    if not dead:
        return Check("dead", 0.0, "passed", "No map of scores is all zeros.")
    sentence = (
        f"{dead} of {result.scores.shape[:-1].numel()} maps of scores are all zeros: the method "
        f"sees no part of the input that the target depends on. Try another method, such as "
        f"'input_x_gradient', or another target."
    )
    return Check("dead", float(dead), "doubt", sentence)


def _judge_layout(request: Request, result: Result) -> Check:
    """Judge whether it is known which part of the input a score belongs to."""
    if result.layout.doubt:
        return Check("layout", 1.0, "doubt", result.layout.doubt)
    if result.layout.note:
        return Check("layout", 0.0, "passed", result.layout.note)
    if request.subject.layout.grid is not None:
        return Check("layout", 0.0, "passed", "Which part a score belongs to is as you stated it.")
    return Check("layout", 0.0, "passed", "Which part a score belongs to follows from the model.")
