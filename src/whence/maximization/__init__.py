"""Activation maximization: images that a class or an inner part of a vision model responds to."""

from whence.maximization.maximize import activation_maximization
from whence.maximization.objectives import Channel, Head, Token
from whence.maximization.picture import MaximalPicture

__all__ = ["Channel", "Head", "MaximalPicture", "Token", "activation_maximization"]
