"""A block with enough operators to be a region."""

import torch
from torch import nn


class Block(nn.Module):
    """Eight times a product and in-place writes: 57 operators."""

    OPERATORS = 8 * 7 + 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        for _ in range(8):
            kept.mul_(0.9).add_(torch.tanh(x))
            x = x @ self.weight / kept.abs().sum(-1, keepdim=True)
        return x
