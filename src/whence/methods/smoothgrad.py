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
from whence.methods.shared.inputs import mark_unpadded_rows, measure_magnitudes
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
        gradients: ``"plain"``, as the authors', or ``"balanced"``.
    """

    needs = ("inputs", "forwards")
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
        inputs, batch = evidence.inputs, evidence.batch
        model = evidence.forwards.as_function(self.gradient_rules)
        draw_noise = self._make_noise(evidence)
        total = inputs.new_zeros(evidence.classes.shape[1], *inputs.shape)
        for chunk in evidence.forwards.chunks(batch * self.samples, "adding noise"):
            rows = range(chunk.start, chunk.stop)
            # Samples of one copy are adjacent, so images share its noise.
            noise = torch.stack([draw_noise(i // batch, i % batch) for i in rows])
            samples = torch.tensor([i % batch for i in rows], device=inputs.device)
            copies = (inputs[samples] + noise).requires_grad_()
            with torch.enable_grad():
                logits = evidence.target_logits(model(copies, samples), samples)
            for of_class, logit in zip(total, logits, strict=True):
                ones = torch.ones_like(logit)
                (gradient,) = torch.autograd.grad(logit, copies, ones, retain_graph=True)
                of_class.index_add_(0, samples, gradient)
        return measure_magnitudes(evidence, total / self.samples)

    def _make_noise(self, evidence: Evidence) -> Callable[[int, int], Tensor]:
        """Make a function from the number of a copy and a sample to noise."""
        inputs = evidence.inputs
        # An image, whose first two dimensions are samples and channels, has no padding.
        real = mark_unpadded_rows(inputs, evidence)
        real = real.reshape(*real.shape, *[1] * (inputs.dim() - 2)).expand_as(inputs)
        kept = [values[where] for values, where in zip(inputs, real, strict=True)]
        deviations = [self.noise * (k.max() - k.min()) if len(k) else k.sum() for k in kept]
        seeds = SeededRandom(self.seed).draw_integers(2**62, self.samples)

        @lru_cache(maxsize=1)
        def draw_numbers(copy: int, count: int) -> Tensor:
            # On the CPU and in single precision: the same for every device and precision.
            return SeededRandom(seeds[copy]).draw_normal(count)

        def draw_noise(copy: int, sample: int) -> Tensor:
            noise = draw_numbers(copy, len(kept[sample])).to(inputs) * deviations[sample]
            return torch.zeros_like(inputs[sample]).masked_scatter_(real[sample], noise)

        return draw_noise
