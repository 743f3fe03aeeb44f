"""Pictures and pages of explanations: heatmaps over photos, coloured words."""

from whence.render.colors import colormaps
from whence.render.drawing import Figure
from whence.render.figure import figure
from whence.render.overlay import overlay
from whence.render.text import terminal_text, text_html, text_page

__all__ = [
    "Figure",
    "colormaps",
    "figure",
    "overlay",
    "terminal_text",
    "text_html",
    "text_page",
]
