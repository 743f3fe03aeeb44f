"""Pictures and pages of explanations: heatmaps over photos, coloured words, HTML templates."""

from whence.render.colors import list_colormaps
from whence.render.comparison import draw_comparison
from whence.render.drawing import Figure
from whence.render.figure import draw_figure
from whence.render.generation import format_generation_html, format_generation_page
from whence.render.matrix import draw_matrix
from whence.render.overlay import overlay
from whence.render.photo import format_photo_page
from whence.render.terminal import format_terminal_text
from whence.render.text import format_text_html, format_text_page

__all__ = [
    "Figure",
    "draw_comparison",
    "draw_figure",
    "draw_matrix",
    "format_generation_html",
    "format_generation_page",
    "format_photo_page",
    "format_terminal_text",
    "format_text_html",
    "format_text_page",
    "list_colormaps",
    "overlay",
]
