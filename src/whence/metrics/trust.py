"""Measure how far explanations can be trusted: noise, completeness, rounding, random weights.

Only here is anything run, and only through what the caller passes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence._util.torch_internals import parameter_initializer
from whence.errors import WhenceError

_WINDOW = 11
_DEVIATION = 1.5


@dataclass(frozen=True)
class RandomizedLayer:
    """Similarity of maps to the model's own, once a layer and all above it are random.

    `spearman` (n,) is of absolute scores; `ssim` (n,) of absolute maps, if these are
    (n, height, width) of 11 or more pixels a side.
    """

    layer: str
    spearman: Tensor
    ssim: Tensor | None


def sensitivity(
    explain: Callable[[Tensor], Tensor],
    inputs: Tensor,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
    *,
    same_noise: bool = False,
) -> Tensor:
    """Max-sensitivity (n,): how far a map moves under small noise (Yeh et al., NeurIPS 2019).

    The largest |E(x + d) - E(x)| / |E(x)| over draws of d, uniform between -radius and radius, with
    the Euclidean norm of each sample's map. A map that is all 0 is divided by 1.

    Args:
        explain: Maps (n, ...) for inputs.
        inputs: (n, ...), floating point.
        radius: Of the noise, in the units of the inputs.
        samples: How many draws.
        seed: Of the generator.
        same_noise: Whether all inputs get the noise that each would get alone.
    """
    if not inputs.is_floating_point():
        raise WhenceError("Noise can be added to numbers such as pixels or embeddings only.")
    if samples < 1 or radius < 0:
        raise WhenceError("Sensitivity needs one sample or more, and a radius of 0 or more.")
    generator = torch.Generator().manual_seed(seed)
    first = explain(inputs).detach().double().flatten(1)
    norm = first.norm(dim=1)
    worst = torch.zeros_like(norm)
    for _ in range(samples):
        shape = (1, *inputs.shape[1:]) if same_noise else inputs.shape
        noise = torch.rand(shape, generator=generator, dtype=torch.float64)
        noisy = inputs + ((2 * noise - 1) * radius).to(inputs)
        moved = explain(noisy).detach().double().flatten(1) - first
        worst = torch.maximum(worst, moved.norm(dim=1))
    return worst / torch.where(norm > 0, norm, 1)


def completeness_error(
    scores_sum: Tensor, output: Tensor, baseline_output: Tensor
) -> dict[str, Tensor]:
    """Error of the scores' sum against the explained difference (Sundararajan et al., ICML 2017).

    Args:
        scores_sum: (n,), the sum of each sample's scores.
        output: (n,), the explained output.
        baseline_output: (n,), the same for the baseline; zeros if the method has none.

    Returns:
        Each (n,): "absolute" is |sum - (output - baseline)|, "relative" that divided by
        |output - baseline|, or by 1 where this is 0.
    """
    whole = output.double() - baseline_output.double()
    error = (scores_sum.double() - whole).abs()
    return {"absolute": error, "relative": error / torch.where(whole == 0, 1, whole.abs())}


def agreement(one: Tensor, other: Tensor) -> dict[str, Tensor]:
    """Agreement of scores (n, ...) with a reference `other`, such as float32 with float64.

    Returns:
        Each (n,): "difference" is the largest |one - other| divided by the largest |other| (by 1
        where that is 0), "spearman" as `spearman` has it.
    """
    _check(one, other)
    first, second = one.double().flatten(1), other.double().flatten(1)
    largest = second.abs().amax(1)
    apart = (first - second).abs().amax(1) / torch.where(largest > 0, largest, 1)
    return {"difference": apart, "spearman": spearman(one, other)}


def spearman(one: Tensor, other: Tensor) -> Tensor:
    """Spearman's correlation of ranks of each sample's scores (n, ...): (n,) in float64.

    Scores that tie share their mean rank. Where either is the same everywhere, it is 1 if both are
    and 0 if one is.
    """
    _check(one, other)
    first, second = (_rank_scores(scores.flatten(1)) for scores in (one, other))
    first, second = (ranks - ranks.mean(1, keepdim=True) for ranks in (first, second))
    size = first.norm(dim=1) * second.norm(dim=1)
    found = (first * second).sum(1) / torch.where(size > 0, size, 1)
    return torch.where((first == second).all(1), 1.0, found).clamp(-1, 1)


def ssim(one: Tensor, other: Tensor) -> Tensor:
    """Structural similarity (n,) of maps (n, height, width), each scaled by its own extremes.

    The mean over all 11 x 11 windows that fit, weighted by a Gaussian of 1.5 pixels, with
    C1 = 0.01^2 and C2 = 0.03^2 (Wang et al., 2004).
    """
    _check(one, other)
    if one.dim() != 3 or min(one.shape[1:]) < _WINDOW:
        raise WhenceError(f"Maps have to be (n, height, width) of {_WINDOW} pixels a side or more.")
    offsets = torch.arange(_WINDOW, dtype=torch.float64, device=one.device) - _WINDOW // 2
    window = torch.exp(-0.5 * (offsets / _DEVIATION) ** 2)
    window = (window / window.sum()).outer(window / window.sum())[None, None]

    def local(maps: Tensor) -> Tensor:
        return F.conv2d(maps[:, None], window)[:, 0]

    first, second = _scale(one), _scale(other)
    mean_1, mean_2 = local(first), local(second)
    square_1, square_2 = local(first**2) - mean_1**2, local(second**2) - mean_2**2
    both = local(first * second) - mean_1 * mean_2
    bright = (2 * mean_1 * mean_2 + 0.01**2) / (mean_1**2 + mean_2**2 + 0.01**2)
    shape = (2 * both + 0.03**2) / (square_1 + square_2 + 0.03**2)
    return (bright * shape).mean((1, 2))


def randomization_cascade(
    model: nn.Module, explain: Callable[[nn.Module], Tensor], seed: int = 0
) -> Iterator[RandomizedLayer]:
    """Make the model's layers random one after the other, from the logits down (Adebayo et al.).

    The cascading test of "Sanity Checks for Saliency Maps" (NeurIPS 2018): a map that shows what
    the model learned has to change. The model itself is left alone: a copy is made random.

    Layers are modules with parameters of their own; those of one block are one layer. A block is a
    module with modules inside that stands in a `ModuleList` or beside others of its class; of
    blocks in blocks the inner counts. Layers come in reverse order of definition, which is that of
    execution in models as they are commonly written. A layer is made random as its class does when
    it is built (`reset_parameters`), or else with normal numbers of the same mean and standard
    deviation.

    Args:
        model: The model.
        explain: Maps (n, ...) of the same samples and classes for the model it is given.
        seed: Of the random weights.
    """
    changed = copy.deepcopy(model)
    original = explain(changed).detach().abs()
    square = original.dim() == 3 and min(original.shape[1:]) >= _WINDOW
    done: set[int] = set()
    for number, (name, modules) in enumerate(reversed(_group_layers(changed).items())):
        _randomize(modules, seed + number, done)
        maps = explain(changed).detach().abs()
        structure = ssim(maps, original) if square else None
        yield RandomizedLayer(name, spearman(maps, original), structure)


def randomize_model(model: nn.Module, seed: int = 0) -> nn.Module:
    """Copy a model and make all of its weights random, as `randomization_cascade` does."""
    changed = copy.deepcopy(model)
    _randomize(list(changed.modules()), seed, set())
    return changed


def _group_layers(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Modules with parameters of their own, by the block they belong to, in order of definition."""
    blocks = set()
    for name, parent in model.named_modules():
        nested = {n: child for n, child in parent.named_children() if list(child.children())}
        kinds = [type(child) for child in nested.values()]
        for child_name, child in nested.items():
            if isinstance(parent, nn.ModuleList) or kinds.count(type(child)) > 1:
                blocks.add(f"{name}.{child_name}" if name else child_name)
    layers: dict[str, list[nn.Module]] = {}
    for name, module in model.named_modules():
        if not list(module.parameters(recurse=False)):
            continue
        parts = name.split(".")
        above = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        layer = next((prefix for prefix in above if prefix in blocks), name)
        layers.setdefault(layer or type(module).__name__, []).append(module)
    return layers


def _randomize(modules: list[nn.Module], seed: int, done: set[int]) -> None:
    """Re-initialise the modules' own parameters, those in `done` excepted, which it adds to."""
    own = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    devices = {parameter.device for parameter in own if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)), torch.no_grad():
        torch.manual_seed(seed)
        for module in modules:
            fresh = [p for p in module.parameters(recurse=False) if id(p) not in done]
            if not fresh:  # shared with a layer above, which is random already
                continue
            reset = parameter_initializer(module)
            if reset is not None:
                reset()
            else:
                for parameter in fresh:
                    _redraw(parameter)
            done.update(id(parameter) for parameter in fresh)


def _redraw(parameter: Tensor) -> None:
    if not parameter.is_floating_point():
        order = torch.randperm(parameter.numel()).to(parameter.device)
        parameter.copy_(parameter.flatten()[order].reshape(parameter.shape))
        return
    values = parameter.double()
    mean, spread = values.mean(), values.std(correction=0)
    if spread == 0:  # all the same, so there is nothing to learn a spread from
        spread = mean.abs() if mean != 0 else torch.full_like(mean, 0.02)
    parameter.copy_(mean + spread * torch.randn_like(values))


def _rank_scores(scores: Tensor) -> Tensor:
    """(n, m): ranks from 0, the mean of their ranks for those that tie."""
    scores, order = scores.sort(dim=1)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    change = scores[:, 1:] != scores[:, :-1]
    first = torch.where(F.pad(change, (1, 0), value=True), places, 0).cummax(1).values
    last = torch.where(F.pad(change, (0, 1), value=True), places, scores.shape[1])
    last = last.flip(1).cummin(1).values.flip(1)
    ranks = torch.empty_like(scores, dtype=torch.float64)
    return ranks.scatter_(1, order, (first + last).double() / 2)


def _scale(maps: Tensor) -> Tensor:
    maps = maps.double()
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low, 1)


def _check(one: Tensor, other: Tensor) -> None:
    if one.shape != other.shape or one.dim() < 2:
        raise WhenceError(
            f"Scores have to be (n, ...) of the same shape, not {tuple(one.shape)} and "
            f"{tuple(other.shape)}."
        )
    if not (one.isfinite().all() and other.isfinite().all()):
        raise WhenceError("Some scores are NaN or infinite, so they cannot be compared.")
