"""Pictures that a part of a vision Transformer answers to most: activation maximization."""

from whence.maximization.maximize import activation_maximization
from whence.maximization.objectives import Head, Token, Unit
from whence.maximization.picture import MaximalPicture

__all__ = ["Head", "MaximalPicture", "Token", "Unit", "activation_maximization"]
