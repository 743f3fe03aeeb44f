"""Draw pictures of one to three coloured shapes, and write captions for them.

    a red square · a blue circle and a green triangle · a picture of a star · a yellow shape

Every shape of a picture has a mask, so that it is known which pixels a caption speaks of.
`training/shapes.py` trains a small CLIP on such pictures; `benchmarks/shapes.py` asks whether maps
of that model lie on the shape that the text names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

COLORS = {
    "red": (0.85, 0.12, 0.12),
    "green": (0.10, 0.62, 0.22),
    "blue": (0.13, 0.30, 0.85),
    "yellow": (0.95, 0.83, 0.12),
    "purple": (0.55, 0.18, 0.70),
    "orange": (0.95, 0.50, 0.08),
}
SHAPES = ["circle", "square", "triangle", "cross", "star"]
COLOR_NAMES = list(COLORS)
KINDS = len(COLORS) * len(SHAPES)
OPENINGS = ["", "a picture of ", "there is "]
MOST = 3  # shapes of a picture
CELLS = 2  # a picture has 2 x 2 places, of which no two shapes share one


@dataclass(frozen=True)
class Phrase:
    """One thing that a caption names: "a red square", "a square", "a red shape"."""

    color: str | None
    shape: str | None

    def write(self) -> str:
        """Write the phrase in words."""
        return " ".join(filter(None, ["a", self.color, self.shape or "shape"])).replace(
            "a orange", "an orange"
        )


@cache
def list_kinds(phrase: Phrase) -> Tensor:
    """List which of the kinds of things a phrase fits, as zeros and ones."""
    colors = torch.tensor([phrase.color in (None, name) for name in COLOR_NAMES])
    shapes = torch.tensor([phrase.shape in (None, name) for name in SHAPES])
    return (colors[:, None] & shapes).flatten().float()


@dataclass(frozen=True)
class Scenes:
    """Pictures, and what is on them.

    Attributes:
        pixels: (n, 3, height, width), from 0 to 1.
        masks: (n, 3 shapes, height, width), true where a shape is seen.
        colors: (n, 3 shapes) indices of colours.
        shapes: (n, 3 shapes) indices of shapes.
        present: (n, 3 shapes), false for a shape that is not there.
    """

    pixels: Tensor
    masks: Tensor
    colors: Tensor
    shapes: Tensor
    present: Tensor

    def name_things(self) -> list[list[Phrase]]:
        """Name what is on each picture, in the order of the masks."""
        facts = zip(
            self.colors.tolist(), self.shapes.tolist(), self.present.sum(1).tolist(), strict=True
        )
        return [
            [Phrase(COLOR_NAMES[color], SHAPES[shape]) for color, shape in zip(*kinds, strict=True)]
            for *kinds, count in facts
            for kinds in [[row[:count] for row in kinds]]
        ]

    def list_kinds(self) -> Tensor:
        """List the kinds of things on each picture: (n, kinds) of zeros and ones."""
        kinds = self.colors * len(SHAPES) + self.shapes
        found = torch.zeros(len(kinds), KINDS, device=kinds.device)
        return found.scatter_reduce(1, kinds, self.present.float(), "amax")


def draw_scenes(
    count: int,
    generator: torch.Generator,
    *,
    size: tuple[int, int] = (96, 96),
    fewest: int = 1,
    most: int = MOST,
) -> Scenes:
    """Draw pictures at random, of shapes that do not touch and are no two alike.

    Args:
        count: How many.
        generator: Source of chance; its device is where the pictures are drawn.
        size: Height and width in pixels.
        fewest: Shapes of a picture at least.
        most: Shapes of a picture at most.
    """
    device = generator.device

    def draw(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, device=device)

    kinds = draw(count, KINDS).argsort(1)[:, :MOST]
    colors, shapes = kinds // len(SHAPES), kinds % len(SHAPES)
    shown = torch.randint(fewest, most + 1, (count, 1), generator=generator, device=device)
    present = torch.arange(MOST, device=device) < shown
    cells = draw(count, CELLS * CELLS).argsort(1)[:, :MOST]
    height, width = size
    side = torch.tensor([height / CELLS, width / CELLS], device=device)
    radius = draw(count, MOST, low=0.3, high=0.48) * side.min()
    corner = torch.stack([cells // CELLS, cells % CELLS], -1) * side
    free = side - 2 * radius[..., None]
    center = corner + radius[..., None] + draw(count, MOST, 2) * free
    alpha = _draw_shapes(shapes, center, radius, draw(count, MOST, low=-0.15, high=0.15), size)
    alpha = alpha * present[..., None, None]
    pixels = _draw_ground(draw, count, size)
    paint = torch.tensor(list(COLORS.values()), device=device)[colors]
    paint = (paint + draw(count, MOST, 3, low=-0.07, high=0.07)).clamp(0, 1)
    for n in range(MOST):
        cover = alpha[:, n, None]
        pixels = pixels * (1 - cover) + paint[:, n, :, None, None] * cover
    noise = torch.randn(pixels.shape, generator=generator, device=device)
    pixels = (pixels + noise * draw(count, 1, 1, 1, high=0.06)).clamp(0, 1)
    return Scenes(pixels, alpha > 0.5, colors, shapes, present)


def _draw_ground(draw, count: int, size: tuple[int, int]) -> Tensor:
    """Draw grounds: a pale or dark grey with a tint, lighter towards one side."""
    tint = draw(count, 1, 1, 1, low=0.15, high=0.95) + draw(count, 3, 1, 1, low=-0.05, high=0.05)
    slope = draw(count, 1, 1, 1, low=-0.12, high=0.12)
    height, width = size
    ramp = torch.linspace(-1, 1, width, device=tint.device).expand(height, width)
    return (tint + slope * ramp).clamp(0, 1)


def _draw_shapes(
    shapes: Tensor, center: Tensor, radius: Tensor, turn: Tensor, size: tuple[int, int]
) -> Tensor:
    """Draw one shape of each kind asked for: how far it covers each pixel, from 0 to 1."""
    height, width = size
    rows = torch.arange(height, device=shapes.device) + 0.5
    columns = torch.arange(width, device=shapes.device) + 0.5
    y = (rows[:, None] - center[..., 0, None, None]) / radius[..., None, None]
    x = (columns - center[..., 1, None, None]) / radius[..., None, None]
    cos, sin = turn.cos()[..., None, None], turn.sin()[..., None, None]
    x, y = cos * x - sin * y, sin * x + cos * y
    inside = torch.zeros_like(x)
    for n, depth in enumerate(_measure_depths(x, y)):
        inside = torch.where(shapes[..., None, None] == n, depth, inside)
    return (0.5 + inside * radius[..., None, None]).clamp(0, 1)


def _measure_depths(x: Tensor, y: Tensor) -> list[Tensor]:
    """Measure how deep a point lies in each of SHAPES of radius 1, negative outside."""
    distance = (x * x + y * y).sqrt()
    square = 0.8 - torch.maximum(x.abs(), y.abs())
    slant = math.sqrt(3) / 2
    triangle = 0.5 - torch.stack([y, slant * x - y / 2, -slant * x - y / 2]).amax(0)
    bars = [torch.minimum(1 - x.abs(), 0.32 - y.abs()), torch.minimum(0.32 - x.abs(), 1 - y.abs())]
    tip, notch = math.pi / 5, 0.42
    angle = tip - (torch.atan2(x, -y) % (2 * tip) - tip).abs()  # from the nearest tip
    edge = notch * math.sin(tip) / (angle.sin() + notch * (tip - angle).sin())
    return [1 - distance, square, triangle, torch.maximum(*bars), edge - distance]


def write_caption(phrases: Sequence[Phrase], opening: str = "") -> str:
    """Write a caption that names some things."""
    return opening + " and ".join(phrase.write() for phrase in phrases)


def find_matches(captions: Sequence[Sequence[Phrase]], scenes: Scenes) -> Tensor:
    """Find which captions hold for which pictures: (captions, pictures) of true and false."""
    longest = max(map(len, captions))
    padded = [[*phrases, *[phrases[0]] * (longest - len(phrases))] for phrases in captions]
    named = torch.stack([list_kinds(phrase) for phrases in padded for phrase in phrases])
    named = named.view(len(captions), longest, KINDS).to(scenes.pixels.device)
    return (torch.einsum("cpk,nk->cpn", named, scenes.list_kinds()) > 0).all(1)
