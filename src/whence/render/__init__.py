"""Pictures and pages of explanations: heatmaps over photos, coloured words, HTML templates."""

from whence.render.colors import list_colormaps
from whence.render.drawing import Figure
from whence.render.figure import draw_figure
from whence.render.overlay import overlay
from whence.render.terminal import format_terminal_text
from whence.render.text import format_text_html, format_text_page

__all__ = [
    "Figure",
    "draw_figure",
    "format_terminal_text",
    "format_text_html",
    "format_text_page",
    "list_colormaps",
    "overlay",
]
