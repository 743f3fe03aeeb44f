"""DAVE: balanced gradients averaged over moved and noisy copies (Wróbel et al.; ICML 2026)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.inputs import require_gradient, sum_over_tokens
from whence.rules.balanced import Gradients
from whence.tracing.ops.products import HALF_TYPES

# Copies that are further from the median than so many deviations do not count. The factor makes the
# median of absolute deviations that of a normal distribution.
_OUTLIER = 2.5
_NORMAL_DEVIATION = 1.4826


@register("dave")
@dataclass(frozen=True)
class Dave(Method):
    r"""Pixels times their balanced gradient, averaged over moved, turned and noisy copies.

    Copy k of an image x is flipped, turned, scaled and shifted at random by :math:`\tau_k`, and
    noise takes the place of a part of it that grows from copy to copy,

    .. math::
        x_k = (1 - t_k)\, \tau_k x + \sqrt{1 - (1 - t_k)^2}\; \varepsilon_k, \qquad
        t_k = \frac{k}{n - 1} \sigma, \quad \varepsilon_k \sim \mathcal{N}(0, 1)

    With y the class logit, the gradient at x, back through the noise and :math:`\tau_k`, gives
    :math:`a_k = x \odot \nabla_x\, y(x_k)`. At each pixel and channel, copies that are more than
    2.5 standard deviations from the median are left out (the deviation being 1.4826 times the
    median of absolute deviations), and the others averaged to :math:`\bar a`. The score of a patch
    is :math:`\sum_p \max(\sum_c \bar a_{c,p}, 0)` over its pixels p and their channels c.

    The gradient is balanced: attention, gates and standard deviations are constants in it, which
    the authors call the effective transformation. Their code smooths the map of pixels afterwards,
    within less than a patch; that is left out here.

    Each copy is moved and gets its noise by a seed of its own: batch and memory do not change it,
    and all images get the same.

    Attributes:
        samples: Number of copies, n.
        noise: The share of noise in the last copy, :math:`\sigma`. The noise is that of an input
            whose pixels were scaled to a deviation of 1. The authors tune it for each model,
            between 0.1 and 0.9.
        shift: The largest shift, as a fraction of the image's height and width.
        angle: The largest angle, in degrees.
        zoom: How much larger or smaller a copy may be, as a fraction.
        flip: Whether half of the copies are mirrored.
        seed: Seed of copies.
        gradients: ``"balanced"``, as the authors', ``"residual"`` or ``"plain"``.
    """

    needs = ("forwards",)
    citation = (
        "Wróbel, Gairola, Tabor, Schiele, Zieliński, Rymarczyk: DAVE: Distribution-Aware "
        "Attribution via ViT Gradient Decomposition, ICML 2026"
    )
    cost = "2 × samples"  # noqa: RUF001
    inputs = ("image",)
    unsteady_types = HALF_TYPES  # not measured

    samples: int = 50
    noise: float = 0.1
    shift: float = 0.1
    angle: float = 20.0
    zoom: float = 0.1
    flip: bool = True
    seed: int = 0
    gradients: Gradients = "balanced"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise WhenceError(f"samples={self.samples} must be at least 1.")
        for name in ("noise", "shift", "zoom"):
            if not 0 <= getattr(self, name) < 1:
                raise WhenceError(f"{name}={getattr(self, name)} must be at least 0 and below 1.")
        if self.angle < 0:
            raise WhenceError(f"angle={self.angle} must not be negative.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        (inputs,) = _require_images(evidence)
        model = evidence.forwards.as_function(self.gradient_rules)
        copies = _Copies(self, inputs[0])
        scores: list[Tensor] = []
        waiting: list[Tensor] = []
        # All copies of a sample come one after the other: only one sample's are kept.
        rows = evidence.batch * self.samples
        for chunk in evidence.forwards.chunks(rows, "moving the image"):
            numbers = torch.arange(chunk.start, chunk.stop, device=inputs.device)
            samples = numbers // self.samples
            x = inputs[samples].requires_grad_()
            with torch.enable_grad():
                moved = copies.move(x, numbers % self.samples)
                logits = evidence.targets.values(model(moved, samples), samples)
            gradients: list[Tensor] = []
            for logit in logits:
                with require_gradient("dave"):
                    ones = torch.ones_like(logit)
                    gradients += torch.autograd.grad(logit, x, ones, retain_graph=True)
            waiting += (x.detach() * torch.stack(gradients)).unbind(1)
            del x, moved, logits, logit  # or two chunks' graphs would be in memory together
            while len(waiting) >= self.samples:
                products = torch.stack(waiting[: self.samples])
                scores.append(_average_without_outliers(products))
                del waiting[: self.samples], products
        axes = evidence.layout.axes or ()
        channels = [2 + d for d in range(inputs.dim() - 1) if d not in axes]
        pixels = torch.stack(scores, 1).sum(channels, keepdim=True).clamp(min=0)
        return sum_over_tokens(evidence, [pixels], evidence.forwards.rows)


def _require_images(evidence: Evidence) -> list[Tensor]:
    """The pixels, (batch, ..., channels, height, width), of a model that reads them once."""
    inputs, layout = evidence.forwards.inputs, evidence.layout
    is_image = len(inputs) == 1 and inputs[0].dim() > 3 and evidence.forwards.rows[0] is None
    if not is_image or tuple(layout.axes or ())[-2:] != (inputs[0].dim() - 3, inputs[0].dim() - 2):
        raise WhenceError(
            "Method 'dave' moves and turns images, and this model does not read its input as "
            "channels of rows and columns of pixels. 'smoothgrad' with gradients='balanced' "
            "averages over noise alone."
        )
    return inputs


def _average_without_outliers(values: Tensor) -> Tensor:
    """The mean of copies, (copies, ...), without those that are far from their median."""
    distances = (values - values.median(0).values).abs()
    deviation = _NORMAL_DEVIATION * distances.median(0).values + 1e-8
    kept = (distances <= _OUTLIER * deviation).to(values.dtype)
    return (values * kept).sum(0) / kept.sum(0).clamp(min=1)


class _Copies:
    """Makes moved and noisy copies of images of one shape.

    Args:
        options: How far copies are moved, and how noisy they are.
        like: One image.
    """

    def __init__(self, options: Dave, like: Tensor) -> None:
        count = options.samples
        seeds = SeededRandom(options.seed).draw_integers(2**62, count)
        draws = [SeededRandom(seed) for seed in seeds]
        # On the CPU and in single precision: the same for every device and precision.
        moves = torch.stack([draw.draw_uniform(5) for draw in draws])
        self._maps = _make_maps(moves, options, *like.shape[-2:]).to(like)
        self._noise = torch.stack([draw.draw_normal(*like.shape) for draw in draws]).to(like)
        levels = torch.linspace(0, options.noise, count, device="cpu", dtype=torch.float64)
        self._levels = levels.to(like)

    def move(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Copies of images, (rows, ...), each by the number of its copy."""
        frames = images.flatten(0, -4) if images.dim() > 4 else images
        maps = self._maps[numbers].repeat_interleave(len(frames) // len(images), 0)
        grid = F.affine_grid(maps, list(frames.shape), align_corners=False)
        moved = F.grid_sample(frames, grid, align_corners=False).view_as(images)
        kept = 1 - self._levels[numbers].reshape(-1, *[1] * (images.dim() - 1))
        return kept * moved + (1 - kept**2).sqrt() * self._noise[numbers]


def _make_maps(moves: Tensor, options: Dave, height: int, width: int) -> Tensor:
    """Maps from places of the copy to places of the image, (copies, 2, 3).

    Places are between -1 and 1 in both directions.

    Args:
        moves: Five numbers between 0 and 1 for each copy.
        options: How far copies are moved.
        height: Of the image.
        width: Of the image.
    """
    turn, zoom, right, down, mirror = (2 * moves - 1).unbind(1)
    angle = turn * math.radians(options.angle)
    size = 1 / (1 + zoom * options.zoom)
    ones = torch.ones_like(mirror)
    sign = ones.copysign(mirror) if options.flip else ones
    cosine, sine = angle.cos() * size, angle.sin() * size
    rows = (
        (sign * cosine, -sign * sine * height / width, 2 * right * options.shift),
        (sine * width / height, cosine, 2 * down * options.shift),
    )
    return torch.stack([torch.stack(row, 1) for row in rows], 1)
