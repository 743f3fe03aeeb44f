"""Attributions of any method as Captum's classes give them: tensors of the inputs' shapes."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from whence._util.defaults import METHOD
from whence.errors import WhenceError
from whence.explainer import Explainer
from whence.explanation import Explanation
from whence.metrics.pixels import spread_patches
from whence.targets import AnyTarget


class WhenceAttribution:
    """Any method of whence, with the call of Captum's attribution classes.

    Args:
        model: The model, or an Explainer of it.
        method: Any of ``methods.available()``.
        **options: Other arguments of `Explainer.explain`: ``rules``, options of the method.

    Example:
        >>> attribution = WhenceAttribution(model, method="tiba")  # doctest: +SKIP
        >>> sensitivity_max(attribution.attribute, pixels, target=281)  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module | Explainer, method: str = METHOD, **options: Any) -> None:
        self.explainer = model if isinstance(model, Explainer) else Explainer(model)
        self.forward_func = self.explainer.model
        self.options = {"method": method, **options}

    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: AnyTarget | Tensor | None = None,
        additional_forward_args: object = None,
        **options: Any,
    ) -> Tensor | tuple[Tensor, ...]:
        """Attribute a target to the inputs.

        Args:
            inputs: A batch as the model takes it, or several in the order of its arguments.
            target: As for `Explainer.explain`; also a tensor with a class for each sample.
            additional_forward_args: Further arguments of the model, which get no scores.
            **options: As for the class, for this call.

        Returns:
            For each input a tensor of its shape. The score of a patch is shared evenly among its
            pixels and channels, that of a token among its features: sums stay what they are.

        Raises:
            WhenceError: Something is wrong with the request, or scores are of no parts of an input.
        """
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        if not given or not all(isinstance(one, Tensor) for one in given):
            raise WhenceError("The inputs are a tensor, or a tuple of tensors.")
        more = () if additional_forward_args is None else additional_forward_args
        every: Any = (*given, *(more if isinstance(more, tuple | list) else (more,)))
        names = list(inspect.signature(self.forward_func.forward).parameters)[: len(every)]
        if len(names) < len(every):
            raise WhenceError(f"The model takes {len(names)} inputs, and got {len(every)}.")
        goal: Any = target.tolist() if isinstance(target, Tensor) else target
        request: dict[str, Any] = {**self.options, "target": goal, **options}
        request["of"] = names[: len(given)]
        found = self.explainer.explain(dict(zip(names, every, strict=True)), **request)
        spread = tuple(spread_scores(found[n], x) for n, x in zip(names, given, strict=False))
        return spread[0] if isinstance(inputs, Tensor) else spread


def spread_scores(explanation: Explanation, inputs: Tensor) -> Tensor:
    """Share the scores of patches or tokens evenly among the values of the input they stand for.

    Args:
        explanation: Of one target.
        inputs: (batch, channels, height, width), (batch, tokens) or (batch, tokens, features).

    Raises:
        WhenceError: The scores are of several targets, or of no parts of this input.
    """
    scores, grid = explanation.scores, explanation.grid
    if scores.dim() != 2:
        raise WhenceError("Attributions are of one target: give `target`, not `classes`.")
    if grid is None and inputs.shape[:2] == scores.shape:
        places = scores.reshape(*scores.shape, *[1] * (inputs.dim() - 2))
        return (places / math.prod(inputs.shape[2:])).expand(inputs.shape).clone()
    if grid is None or len(grid) != 2 or explanation.image_size != tuple(inputs.shape[-2:]):
        raise WhenceError(
            f"{scores.shape[1]} scores cannot be laid over an input of shape "
            f"{tuple(inputs.shape)}; see Explainer(model).explain(inputs).scores."
        )
    rows, columns = grid
    height, width = explanation.image_size
    numbers = torch.arange(rows * columns, device=scores.device)[None]
    cells = spread_patches(numbers, (rows, columns), (height, width))
    counts = cells.flatten().bincount(minlength=rows * columns) * math.prod(inputs.shape[1:-2])
    pixels = spread_patches(scores / counts, (rows, columns), (height, width))
    return pixels[:, None].expand(inputs.shape).clone()
