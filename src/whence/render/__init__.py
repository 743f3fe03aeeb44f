"""Pictures and pages of explanations: heatmaps over photos, coloured words."""

from whence.render.colors import colormaps
from whence.render.drawing import Figure
from whence.render.figure import figure
from whence.render.overlay import overlay

__all__ = ["Figure", "colormaps", "figure", "overlay"]
