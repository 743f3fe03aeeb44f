"""Checks of explanations against flows of tokens that are written with dense matrices."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.families.flows import Plan, Run, compute_scores, find_evidence
from whence import Explainer

METHODS = ("rollout", "gae", "tiba", "whence")
READ_RELEVANCE = ("tiba", "partial_lrp")
TOLERANCE = 1e-6  # some models compute their softmax in float32


def check_flow(
    explainer: Explainer,
    inputs: Any,
    target: Any,
    plan: Plan,
    run: Callable[[int], Run],
    methods: Sequence[str] = METHODS,
    samples: int = 2,
    grid: tuple[int, ...] | None = None,
    keeps_identity: bool = False,
    **options: Any,
) -> None:
    """Check scores of a batch against dense matrices, sample by sample.

    Args:
        explainer: Explains the model.
        inputs: A batch.
        target: What is explained.
        plan: The model's attentions, and what its head reads.
        run: Runs the model on one sample alone.
        methods: Names of methods.
        samples: The size of the batch.
        grid: The grid of units.
        keeps_identity: Whether what tokens that are read keep of themselves counts.
        **options: More of `explain`.
    """
    runs, failed = [run(sample) for sample in range(samples)], []
    for method in methods:
        more = {"gradients": "plain"} if method == "whence" else {}
        result = explainer.explain(
            inputs, target, method=method, keep_evidence=method in READ_RELEVANCE, **more, **options
        )
        if grid is not None:
            assert result.grid == grid, f"{method}: {result.grid}"
        expectations = []
        for sample, own in enumerate(runs):
            expected = compute_expected(
                method, plan, own, result, sample, keeps_identity, isinstance(target, int)
            )
            expectations.append(expected)
            error = measure_error(result.scores[sample], expected)
            if not error < TOLERANCE:
                failed.append(f"{method}, sample {sample}: off by {error:.1e}")
        assert any(bool(one.any()) for one in expectations), f"{method}: nothing is expected"
    assert not failed, failed


def compute_expected(
    method: str,
    plan: Plan,
    run: Run,
    result: Any,
    sample: int,
    keeps_identity: bool = False,
    is_class: bool = True,
) -> Tensor:
    """Scores of one sample by the definition; `tiba` takes the relevance that was kept.

    The logit of a class competes with others.
    """
    if method == "whence":
        assert run.run_centered is not None
        return find_evidence(plan, run.run_centered() if is_class else run)
    relevance = None
    if method in READ_RELEVANCE:
        batch = len(result.scores)
        relevance = [
            one.reshape(batch, -1)[sample] for one in result.evidence.relevance if len(one)
        ]
    return compute_scores(method, plan, run, relevance, keeps_identity)


def measure_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest expected score, if any is not 0."""
    found = found.flatten().double()
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert torch.isfinite(found).all()
    largest = expected.abs().max()
    return float((found - expected).abs().max() / (largest if largest > 0 else 1))
