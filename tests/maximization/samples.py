"""A tiny vision model, targets in it, and objectives of targets."""

from torch import nn

from tests.zoo import CASES, build_model
from whence.maximization import Channel, Head, Token
from whence.maximization.objectives import build_class_objective, build_inner_objective

TARGETS = [2, Channel(1, 5), Token(2, 3), Head(1, 2)]


def build_tiny() -> nn.Module:
    return build_model(CASES["ViTForImageClassification-sdpa"])


def build_objective(model, target, inputs):
    """Build the objective of a class index or of a target inside of the model."""
    if isinstance(target, int):
        return build_class_objective(model, target)
    return build_inner_objective(model, target, inputs)
