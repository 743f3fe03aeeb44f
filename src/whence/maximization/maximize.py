"""Climbing: from a nearly grey picture to one that a part of a model answers to most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from whence._util.progress import bar
from whence.errors import WhenceError
from whence.maximization.objectives import (
    Head,
    Objective,
    Token,
    Unit,
    class_objective,
    find_class,
    inner_objective,
)
from whence.maximization.parametrization import (
    PARAMETRIZATIONS,
    Parametrization,
    moved,
    total_variation,
)
from whence.maximization.picture import MaximalPicture
from whence.maximization.subject import Channels, Model, Subject


def activation_maximization(
    model: Model,
    target: int | str | Unit | Token | Head,
    *,
    image_size: int | tuple[int, int] | None = None,
    mean: Channels = None,
    std: Channels = None,
    parametrization: Parametrization = "fourier",
    steps: int = 256,
    learning_rate: float = 0.02,
    l2: float = 2.0,
    total_variation: float = 100.0,
    jitter: int = 16,
    rotation: float = 8.0,
    zoom: float = 0.1,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
) -> MaximalPicture:
    r"""Make a picture that a class, a unit, a token or a head answers to most.

    .. math::
        \max_x \; \mathbb{E}_\tau \, \frac{q(\tau(x))}{s} - \lambda_2 \operatorname{mean}(z(x)^2)
        - \lambda_{TV} \, TV(x)

    by `steps` steps of Adam, where q is what is maximised, s its size at the start (1 for a
    logit), tau a small random movement, another at each step, z(x) the picture as the model takes
    it, and TV the mean square of differences between neighbouring pixels.

    Args:
        model: A module, or what `whence.explain` takes: a folder, a name, a loaded model. None is
            the embedded model.
        target: A class, by index or name, whose logit is maximised; or `Unit`, `Token` or `Head`
            of ``whence.maximization``.
        image_size: Height and width, or one number for both; if left out, what the model tells.
        mean: Mean of pixels from 0 to 1, one number or one for each channel; if left out, that of
            the loaded model's processor or of timm's configuration, else 0.5.
        std: Their standard deviation, likewise.
        parametrization: ``"fourier"``, waves in decorrelated colours, or ``"pixels"``.
        steps: How many steps.
        learning_rate: Of Adam: how far pixels move at each step, or waves, relative to what photos
            have of them.
        l2: Weight of the mean square of the picture as the model takes it.
        total_variation: Weight of the total variation.
        jitter: At each step the picture is shifted by up to so many pixels, around its edges.
        rotation: At each step it is turned by up to so many degrees.
        zoom: At each step it is scaled by up to this share.
        seed: Of the noise at the start and of the movements.
        output: Gets the logits from what the model returns, if it is not obvious.

    Returns:
        The picture and what it makes of the model.

    Raises:
        WhenceError: Something is wrong with the model or the request.

    Example:
        >>> activation_maximization(None, "cat").save("cat.png")  # doctest: +SKIP
    """
    climb = Climb(
        parametrization, steps, learning_rate, l2, total_variation, jitter, rotation, zoom, seed
    )
    # Whatever surrounds the call, gradients are computed, in the precision of the weights.
    with torch.inference_mode(False), torch.enable_grad():
        subject = Subject.of(model, image_size, mean, std)
        with torch.autocast(subject.mean.device.type, enabled=False):
            found, name, objective = _objective(subject, target, output)
            pixels, values = climb(subject, objective)
            inputs = subject.normalized(pixels)
            value = float(objective.number(inputs.to(subject.dtype)).detach())
    return MaximalPicture(found, name, pixels, inputs, value, values, asdict(climb))


def _objective(
    subject: Subject, target: Any, output: Callable[[Any], Tensor] | None
) -> tuple[Any, str, Objective]:
    """What is meant by a target, its name, and the function to maximise."""
    start = subject.normalized(torch.full_like(subject.mean, 0.5).expand(-1, *subject.size))
    start = start.to(subject.dtype)
    try:
        if isinstance(target, Unit | Token | Head):
            return target, str(target), inner_objective(subject.model, target, start, output)
        with torch.no_grad():
            index = find_class(subject.model, target, subject.class_names, start, output)
        name = subject.class_names.get(index, f"class {index}")
        return index, name, class_objective(subject.model, index, output)
    except WhenceError:
        raise
    except Exception as error:
        height, width = subject.size
        said = str(error).split("\n")[0].rstrip(".")
        raise WhenceError(
            f"The model does not take a picture of 3x{height}x{width}: {said}. Another size can be "
            f"given: image_size=(height, width)."
        ) from error


@dataclass(frozen=True)
class Climb:
    """How to climb; the arguments are those of `activation_maximization`."""

    parametrization: Parametrization
    steps: int
    learning_rate: float
    l2: float
    total_variation: float
    jitter: int
    rotation: float
    zoom: float
    seed: int

    def __post_init__(self) -> None:
        if self.parametrization not in PARAMETRIZATIONS:
            names = ", ".join(repr(name) for name in PARAMETRIZATIONS)
            raise WhenceError(f"parametrization is one of {names}, not {self.parametrization!r}.")
        for name, least in (("steps", 1), ("jitter", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise WhenceError(f"{name} is a whole number from {least} on, not {value!r}.")
        for name in ("learning_rate", "l2", "total_variation", "rotation", "zoom"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise WhenceError(f"{name} is a number, not {value!r}.")
            if not math.isfinite(value) or value < 0:
                raise WhenceError(f"{name} is a number from 0 on, not {value!r}.")
        if not self.learning_rate:
            raise WhenceError("learning_rate is above 0; with 0 the picture stays as it is.")
        if self.zoom >= 1:
            raise WhenceError(f"zoom is a share below 1, not {self.zoom!r}.")

    def __call__(self, subject: Subject, objective: Objective) -> tuple[Tensor, Tensor]:
        """The picture, (3, height, width), and the value at each step.

        Raises:
            WhenceError: What is maximised does not depend on the picture, or is not finite.
        """
        random = torch.Generator().manual_seed(self.seed)
        picture = PARAMETRIZATIONS[self.parametrization](subject.size, random, subject.mean)
        free = picture.free.requires_grad_()
        adam = torch.optim.Adam([free], lr=self.learning_rate)
        values = []
        with bar("maximising", self.steps) as advance:
            for step in range(self.steps):
                whole = picture()
                view = moved(whole, random, self.jitter, self.rotation, self.zoom)
                value = objective.number(subject.normalized(view).to(subject.dtype))
                if step == 0:
                    _check_dependence(value, whole)
                penalty = self._penalty(subject, whole)
                free.grad = _downhill(value / objective.scale, penalty, whole, free)
                adam.step()
                picture.bound()
                values.append(value.detach())
                advance(1)
        seen = torch.stack(values).cpu()
        result = picture().detach()
        if not (torch.isfinite(seen).all() and torch.isfinite(result).all()):
            raise WhenceError(
                "What is maximised became NaN or infinite. A smaller learning_rate may help, or a "
                "float32 copy of the model."
            )
        return result, seen

    def _penalty(self, subject: Subject, picture: Tensor) -> Tensor:
        size = subject.normalized(picture).square().mean()
        return self.l2 * size + self.total_variation * total_variation(picture)


def _downhill(value: Tensor, penalty: Tensor, picture: Tensor, free: Tensor) -> Tensor:
    """Gradient of what is to become small, the penalty less the value."""
    (up,) = torch.autograd.grad(value, picture)
    (down,) = torch.autograd.grad(penalty, picture)
    return torch.autograd.grad(picture, free, down - up)[0]


def _check_dependence(value: Tensor, picture: Tensor) -> None:
    """Refuse what no picture changes, such as a class token that has not read anything yet."""
    gradient = None
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, picture, retain_graph=True, allow_unused=True)
    if gradient is None or not gradient.any():
        raise WhenceError(
            "What is maximised does not depend on the picture: its gradient is zero. Prefix tokens "
            "such as [CLS] have read nothing of the picture before the first layer."
        )
