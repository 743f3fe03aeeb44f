"""SmoothGrad: the gradient averaged over noisy inputs (Smilkov et al.; 2017)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import (
    mark_unpadded_units,
    measure_magnitudes,
    require_gradient,
    units_to_inputs,
)
from whence.rules.balanced import Gradients


@register("smoothgrad")
@dataclass(frozen=True)
class SmoothGrad(Method):
    r"""The gradient at the input, averaged over noisy copies of it.

    .. math::
        \bar g = \frac{1}{n} \sum_{k=1}^{n} \nabla y(x + \varepsilon_k), \qquad
        \varepsilon_k \sim \mathcal{N}\bigl(0, \sigma^2 (\max x - \min x)^2\bigr)

    with y the class logit and x the pixels or token embeddings of one sample. The raw gradient is
    averaged, as in the paper; :math:`\bar g` then becomes scores as in method ``"gradient"``.

    A copy's noise is drawn from a seed of its own, for tokens without padding only: padding, batch
    and memory do not change it, and all images get the same.

    Attributes:
        samples: Number of noisy copies, n.
        noise: :math:`\sigma`, the noise's standard deviation as a fraction of the input's range.
        seed: Seed of the noise.
        gradients: ``"plain"``, as the authors', ``"balanced"`` or ``"residual"``.
    """

    needs = ("forwards",)
    citation = (
        "Smilkov, Thorat, Kim, Viégas, Wattenberg: SmoothGrad: removing noise by adding noise, "
        "arXiv 2017"
    )
    cost = "2 × samples"  # noqa: RUF001

    samples: int = 25
    noise: float = 0.15
    seed: int = 0
    gradients: Gradients = "plain"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise WhenceError(f"samples={self.samples} must be at least 1.")
        if self.noise < 0:
            raise WhenceError(f"noise={self.noise} must not be negative.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        inputs, batch = evidence.forwards.inputs, evidence.batch
        model = evidence.forwards.as_function(self.gradient_rules)
        reals = self._mark_noisy(evidence)
        draws = [
            self._make_noise(x, real, n)
            for n, (x, real) in enumerate(zip(inputs, reals, strict=True))
        ]
        totals = [x.new_zeros(evidence.targets.count, *x.shape) for x in inputs]
        for chunk in evidence.forwards.chunks(batch * self.samples, "adding noise"):
            rows = range(chunk.start, chunk.stop)
            # Samples of one copy are adjacent, so images share its noise.
            samples = torch.tensor([i % batch for i in rows], device=evidence.logits.device)
            copies = []
            for x, draw in zip(inputs, draws, strict=True):
                noise = torch.stack([draw(i // batch, i % batch) for i in rows])
                copies.append((x[samples] + noise).requires_grad_())
            with torch.enable_grad():
                logits = evidence.targets.values(model(*copies, samples), samples)
            for number, logit in enumerate(logits):
                ones = torch.ones_like(logit)
                with require_gradient("smoothgrad"):
                    gradients = torch.autograd.grad(logit, copies, ones, retain_graph=True)
                for total, gradient in zip(totals, gradients, strict=True):
                    total[number].index_add_(0, samples, gradient)
        means = [total / self.samples for total in totals]
        return measure_magnitudes(evidence, means, evidence.forwards.rows)

    @staticmethod
    def _mark_noisy(evidence: Evidence) -> list[Tensor]:
        """Mark what gets noise: all but padding, and embeddings that stand for no token."""
        forwards = evidence.forwards
        units = mark_unpadded_units(evidence).to(evidence.logits.dtype)
        samples = torch.arange(evidence.batch, device=units.device)
        masks = []
        factors = units_to_inputs(evidence, units, samples)
        for x, factor, ids in zip(forwards.inputs, factors, forwards.rows, strict=True):
            mask = factor > 0
            if ids is not None:
                mask = mask & (ids >= 0).reshape(mask.shape)
            masks.append(mask.expand_as(x))
        return masks

    def _make_noise(self, inputs: Tensor, real: Tensor, place: int) -> Callable[[int, int], Tensor]:
        """Make a function from the number of a copy and a sample to noise."""
        kept = [values[where] for values, where in zip(inputs, real, strict=True)]
        deviations = [self.noise * (k.max() - k.min()) if len(k) else k.sum() for k in kept]
        seeds = SeededRandom(self.seed).draw_integers(2**62, self.samples)

        @lru_cache(maxsize=1)
        def draw_numbers(copy: int, count: int) -> Tensor:
            # On the CPU and in single precision: the same for every device and precision.
            return SeededRandom(seeds[copy] + place).draw_normal(count)

        def draw_noise(copy: int, sample: int) -> Tensor:
            noise = draw_numbers(copy, len(kept[sample])).to(inputs) * deviations[sample]
            return torch.zeros_like(inputs[sample]).masked_scatter_(real[sample], noise)

        return draw_noise
