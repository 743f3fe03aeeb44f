"""Gradient ascent on a picture, from nearly grey to a maximum of a logit or an activation."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from whence._util.progress import bar
from whence._util.text import first_line
from whence.errors import WhenceError
from whence.maximization.image_model import ChannelValues, ImageModel, ImageSize, Model
from whence.maximization.objectives import (
    InnerTarget,
    Objective,
    Output,
    build_class_objective,
    build_inner_objective,
    pick_logits,
)
from whence.maximization.parametrization import (
    PARAMETRIZATIONS,
    Parametrization,
    compute_total_variation,
    transform_randomly,
)
from whence.maximization.picture import MaximalPicture
from whence.targets import find_class_index
from whence.tracing import replicate


def activation_maximization(
    model: Model,
    target: int | str | InnerTarget,
    *,
    image_size: ImageSize | None = None,
    mean: ChannelValues | None = None,
    std: ChannelValues | None = None,
    parametrization: Parametrization = "fourier",
    steps: int = 256,
    learning_rate: float = 0.02,
    l2: float = 2.0,
    total_variation: float = 100.0,
    jitter: int = 16,
    rotation: float = 8.0,
    zoom: float = 0.1,
    seed: int = 0,
    output: Output = None,
) -> MaximalPicture:
    r"""Make a picture that maximises a class logit, a channel, a token or a head.

    .. math::
        \max_x \; \mathbb{E}_\tau \, \frac{q(\tau(x))}{s} - \lambda_2 \operatorname{mean}(z(x)^2)
        - \lambda_{TV} \, TV(x)

    by `steps` steps of Adam, where q is the target's value, s its size at the start (1 for a
    logit), tau a small random transform, another at each step, z(x) the picture as the model takes
    it, and TV the mean squared difference of neighbouring pixels.

    Args:
        model: A module, or a model as `whence.explain` takes it: a folder, a name, a loaded model.
            None is the embedded model.
        target: A class, by index or name, whose logit is maximised; or `Channel`, `Token` or `Head`
            of ``whence.maximization``.
        image_size: Height and width, or one number for both; by default the model's own.
        mean: Mean of pixels from 0 to 1, one number or one for each channel; by default that of
            the loaded model's processor or of timm's configuration, else 0.5.
        std: Standard deviation of pixels, with the same defaults.
        parametrization: ``"fourier"``, coefficients in decorrelated colours, or ``"pixels"``.
        steps: Number of steps.
        learning_rate: Learning rate of Adam: how far pixels move at each step, or coefficients,
            relative to those of photos.
        l2: Weight of the mean square of the picture as the model takes it.
        total_variation: Weight of the total variation.
        jitter: Largest random shift around the edges, in pixels.
        rotation: Largest random rotation, in degrees.
        zoom: Largest random relative change of scale.
        seed: Seed of the noise at the start and of the transforms.
        output: Gets the logits from the model's return value, if they are not obvious.

    Returns:
        The picture and the value that it reaches.

    Raises:
        WhenceError: The model, the target or an option does not fit.

    Example:
        >>> activation_maximization(None, "cat").save("cat.png")  # doctest: +SKIP
    """
    ascent = GradientAscent(
        parametrization, steps, learning_rate, l2, total_variation, jitter, rotation, zoom, seed
    )
    # Gradients are computed in the precision of the weights, whatever surrounds the call.
    with torch.inference_mode(False), torch.enable_grad():
        image_model = ImageModel.resolve(model, image_size, mean, std)
        with torch.autocast(image_model.mean.device.type, enabled=False):
            resolved, name, objective = _build_objective(image_model, target, output)
            pixels, values = ascent.run(image_model, objective)
            inputs = image_model.normalize(pixels)
            value = float(objective.compute(inputs.to(image_model.dtype)).detach())
    return MaximalPicture(resolved, name, pixels, inputs, value, values, asdict(ascent))


def _build_objective(
    image_model: ImageModel, target: int | str | InnerTarget, output: Output
) -> tuple[int | InnerTarget, str, Objective]:
    """Build the objective of a target, with the target as an index and its name."""
    grey = torch.full_like(image_model.mean, 0.5).expand(-1, *image_model.size)
    start = image_model.normalize(grey).to(image_model.dtype)
    model, names = image_model.model, image_model.class_names
    try:
        if isinstance(target, InnerTarget):
            return target, str(target), build_inner_objective(model, target, start, output)
        with torch.no_grad():
            logits = pick_logits(replicate(model)(start), output)
        index = find_class_index(target, names, logits.shape[1])
        name = names.get(index, f"class {index}")
        return index, name, build_class_objective(model, index, output)
    except WhenceError:
        raise
    except Exception as error:
        height, width = image_model.size
        raise WhenceError(
            f"The model does not take a picture of 3x{height}x{width}: {first_line(error)}. "
            f"Another size can be given: image_size=(height, width)."
        ) from error


@dataclass(frozen=True)
class GradientAscent:
    """Adam on a picture; the options are those of `activation_maximization`."""

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

    def run(self, image_model: ImageModel, objective: Objective) -> tuple[Tensor, Tensor]:
        """Return the final picture, (3, height, width), and the value at each step."""
        random = torch.Generator().manual_seed(self.seed)
        make_picture = PARAMETRIZATIONS[self.parametrization]
        parametrized = make_picture(image_model.size, random, image_model.mean)
        parameters = parametrized.parameters.requires_grad_()
        adam = torch.optim.Adam([parameters], lr=self.learning_rate)
        values = []
        with bar("maximising", self.steps) as advance:
            for step in range(self.steps):
                picture = parametrized()
                view = transform_randomly(picture, random, self.jitter, self.rotation, self.zoom)
                value = objective.compute(image_model.normalize(view).to(image_model.dtype))
                if step == 0:
                    _check_dependence(value, picture)
                (of_value,) = torch.autograd.grad(value / objective.scale, picture)
                (of_penalty,) = torch.autograd.grad(self._penalize(image_model, picture), picture)
                (parameters.grad,) = torch.autograd.grad(picture, parameters, of_penalty - of_value)
                adam.step()
                parametrized.clamp()
                values.append(value.detach())
                advance(1)
        history = torch.stack(values).cpu()
        result = parametrized().detach()
        if not (torch.isfinite(history).all() and torch.isfinite(result).all()):
            raise WhenceError(
                "The maximised value became NaN or infinite. A smaller learning_rate may help, or "
                "a float32 copy of the model."
            )
        return result, history

    def _penalize(self, image_model: ImageModel, picture: Tensor) -> Tensor:
        size = image_model.normalize(picture).square().mean()
        return self.l2 * size + self.total_variation * compute_total_variation(picture)


def _check_dependence(value: Tensor, picture: Tensor) -> None:
    """Refuse a value that no picture changes, such as a class token before the first layer."""
    gradient = None
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, picture, retain_graph=True, allow_unused=True)
    if gradient is None or not gradient.any():
        raise WhenceError(
            "The maximised value does not depend on the picture: its gradient is zero. Prefix "
            "tokens such as [CLS] have read nothing of the picture before the first layer."
        )
