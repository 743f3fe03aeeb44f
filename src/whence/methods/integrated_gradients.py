"""Integrated gradients from a baseline to the input (Sundararajan, Taly, Yan; ICML 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.extras import import_extra
from whence._util.progress import bar
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import require_gradient, sum_over_tokens
from whence.rules.balanced import Gradients

Rule = Literal[
    "gausslegendre", "riemann_trapezoid", "riemann_middle", "riemann_left", "riemann_right"
]


@register("integrated_gradients")
@dataclass(frozen=True)
class IntegratedGradients(Method):
    r"""The gradient of the class logit, integrated along a path from a baseline to the input.

    .. math::
        s_i = \sum_{k \in i} (x_k - b_k) \int_0^1
        \frac{\partial y(b + \alpha (x - b))}{\partial x_k} \, d\alpha

    with y the class logit, x the pixels or token embeddings, b the baseline, and k the pixels of
    patch i or the width of token i. With plain gradients the scores sum to :math:`y(x) - y(b)`, up
    to the error of the numerical integral. Captum computes it.

    Attributes:
        steps: Number of points on the path.
        baseline: Every entry of b. Embeddings are those that the model looks up for the tokens;
            position embeddings stay.
        rule: How the integral is approximated. Captum's weights of ``"riemann_trapezoid"`` add up
            to 1 - 1/steps; here they are scaled to 1.
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("forwards",)
    citation = "Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, ICML 2017"
    cost = "2 × steps × classes"  # noqa: RUF001
    signed = True

    steps: int = 32
    baseline: float = 0.0
    rule: Rule = "gausslegendre"
    gradients: Gradients = "plain"

    def __post_init__(self) -> None:
        least = 1 if self.rule == "gausslegendre" else 2
        if self.steps < least:
            raise WhenceError(
                f"steps={self.steps} is too few: rule '{self.rule}' needs at least {least}."
            )

    @property
    @override
    def completes(self) -> bool:
        return self.gradients == "plain"

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        model = evidence.forwards.as_function(self.gradient_rules)
        attribution = import_extra("captum.attr", "captum").IntegratedGradients
        samples = torch.arange(evidence.batch, device=evidence.logits.device)
        rows = evidence.batch * self.steps * evidence.targets.count
        with bar("integrating gradients", rows) as advance:

            def compute_targets(*given: Tensor) -> Tensor:
                values = evidence.targets.values(model(*given), given[-1]).T
                advance(len(given[-1]))
                return values

            method = attribution(compute_targets)
            chunks = evidence.forwards.chunks(evidence.batch, "integrating gradients")
            attributions = [self._explain_chunk(evidence, method, samples[c]) for c in chunks]
        return torch.cat(attributions, 1)

    @staticmethod
    def _sum(evidence: Evidence, attributions: Sequence[Tensor], samples: Tensor) -> Tensor:
        """Sum attributions of some samples over tokens: (samples, tokens)."""
        forwards = evidence.forwards
        whole = [torch.zeros_like(x) for x in forwards.inputs]
        for values, attribution in zip(whole, attributions, strict=True):
            values[samples] = attribution.detach().to(values.dtype)
        return sum_over_tokens(evidence, [x[None] for x in whole], forwards.rows)[0, samples]

    def _explain_chunk(self, evidence: Evidence, method: Any, samples: Tensor) -> Tensor:
        """Explain some samples that fit into memory together."""
        scores, baseline = [], evidence.forwards.make_baseline(self.baseline)
        for target in range(evidence.targets.count):
            with require_gradient("integrated_gradients"):
                attributions = method.attribute(
                    tuple(x[samples] for x in evidence.forwards.inputs),
                    baselines=tuple(x[samples] for x in baseline),
                    target=target,
                    additional_forward_args=(samples,),
                    n_steps=self.steps,
                    method=self.rule,
                    internal_batch_size=evidence.forwards.rows_at_once,
                )
            scores.append(self._sum(evidence, attributions, samples))
        scaled = self.steps / (self.steps - 1) if self.rule == "riemann_trapezoid" else 1
        return torch.stack(scores) * scaled
