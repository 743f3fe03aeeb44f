"""GAE's relevancy of one sample, from attention maps and gradients of the model itself."""

import torch
from torch import Tensor


def weigh_maps(logit: Tensor, maps: list[Tensor]) -> list[Tensor]:
    """For each map of one sample, (1, heads, queries, keys), the mean of max(gradient * map, 0)."""
    gradients = torch.autograd.grad(logit, maps, retain_graph=True)
    pairs = zip(gradients, maps, strict=True)
    return [
        (gradient * attention).clamp(min=0).mean(1)[0].detach() for gradient, attention in pairs
    ]


def multiply_layers(maps: list[Tensor]) -> Tensor:
    relevancy = torch.eye(len(maps[0]), dtype=torch.float64)
    for added in maps:
        relevancy = relevancy + added @ relevancy
    return relevancy
