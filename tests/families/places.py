"""Where tokens stand on the input, by the gradients of what enters the first layer."""

import torch
from torch import Tensor


def find_supports(hidden: Tensor, inputs: Tensor) -> list[Tensor]:
    """For each token of one sample, (1, tokens, width), which values of the input it depends on."""
    random = torch.randn(hidden.shape[-1], generator=torch.Generator().manual_seed(0)).double()
    return [
        torch.autograd.grad(token @ random, inputs, retain_graph=True)[0][0] != 0
        if token.requires_grad
        else torch.zeros(inputs.shape[1:], dtype=torch.bool)
        for token in hidden[0]
    ]


def order_by_place(hidden: Tensor, inputs: Tensor, axes: tuple[int, ...]) -> list[int]:
    """The tokens that depend on the input, in reading order of where they stand on some axes."""
    centres = {}
    for token, support in enumerate(find_supports(hidden, inputs)):
        if support.any():
            at = support.nonzero().double().mean(0)
            centres[token] = tuple(round(float(at[axis]), 6) for axis in axes)
    return sorted(centres, key=centres.__getitem__)
