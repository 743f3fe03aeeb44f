"""The formulas that were tried on the way to the method whence, beside each other.

    python benchmarks/ablation.py --model vit_tiny_in1k_hf --photos imagenet --pets pets

Everything is read once for each photo and class, and all formulas make their maps of it. Maps are
judged by the perturbation test on labelled photos (areas under the accuracy as pixels become black)
and by segmentation on photos of pets with masks, viewed whole. Even and odd photos are apart, so
that what was chosen on one half is seen on the other.

Gradients are balanced unless a name says otherwise. e is the method's: summed over layers, the
positive part of x times gradient, where x enters a block. "times" is the geometric mean of maps
scaled to sum 1. Tokens are bound as in the method, by the mean attention plus its transpose, and
"sharing s" adds s times the mean over bound tokens.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F

from whence import datasets, models, rules
from whence._util.files import write_atomically
from whence._util.progress import bar
from whence.benchmark.labels import LabelMapping
from whence.benchmark.names import draw_names
from whence.benchmark.photos import PreparedPhoto, View, prepare_photo
from whence.evidence import Evidence, gather
from whence.faithfulness.photos import PhotoRunner
from whence.layout import Layout, find_layout
from whence.methods.gae import Gae
from whence.methods.tiba import Tiba
from whence.methods.whence import Whence
from whence.metrics.curves import area_under_curve, compute_curves
from whence.metrics.deletion import FRACTIONS, Order, count_units, delete_in_order, rank_units
from whence.metrics.pixels import upsample_maps
from whence.metrics.segmentation import compare_with_masks, pool_figures
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, compute_logits, stack_on_device
from whence.rules.balanced import BALANCED
from whence.tracing import Trace, record

BATCH = 25
KINDS = ("attention", "gradient", "hidden", "hidden_gradient", "blocks")
ORDERS: dict[str, Order] = {"positive": "highest", "negative": "lowest"}
SEGMENTATION = {"pixel_accuracy": "pixel accuracy", "mIoU": "mIoU", "mAP": "mAP"}
# By formula and figure, one number for each photo.
Figures: TypeAlias = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Readings:
    """What formulas work with, for one class of each photo.

    Attributes:
        balanced: With balanced gradients, and with relevance.
        plain: With plain gradients.
        contrast: Balanced gradients, where states enter blocks, of the class logit less the mean of
            the others weighted by their probabilities.
        joined: Balanced gradients of the class logit where skip connections around attention end.
    """

    balanced: Evidence
    plain: Evidence
    contrast: Sequence[Tensor]
    joined: Sequence[Tensor]

    @classmethod
    def of(cls, loaded: LoadedModel, pixels: Tensor, classes: Tensor) -> "Readings":
        """Read one forward pass."""
        traced = record(loaded.model, (pixels,), {}, 0)
        layout = find_layout(Layout(), traced.sites[0].key_count, pixels, traced.grids)
        asked, stable = classes[:, None], rules.get("stable")
        plain = gather(traced, KINDS, asked, stable, layout)
        balanced = gather(
            traced, (*KINDS, "relevance"), asked, stable, layout, gradients="balanced"
        )
        ends = [traced.entries[block.skip_addition.index].output for block in plain.blocks]
        contrast = contrastive(traced, classes, [block.input_edge for block in plain.blocks])
        return cls(balanced, plain, contrast, traced.read(asked, ends, BALANCED))

    def patches(self, scores: Tensor) -> Tensor:
        """Those of (..., tokens) that are patches."""
        return scores[..., self.plain.layout.prefix or 0 :]

    def entering_times(self, gradients: Sequence[Tensor]) -> Tensor:
        """(layers, batch, tokens, width): what enters blocks, times a gradient."""
        layers = len(self.plain.blocks)  # what leaves the last block is left out
        pairs = zip(self.plain.hidden[:layers], gradients[:layers], strict=True)
        return torch.stack([x * gradient.reshape(x.shape) for x, gradient in pairs])

    def held(self, gradients: Sequence[Tensor]) -> Tensor:
        """(layers, batch, patches): the evidence that enters blocks, for and against."""
        return self.patches(self.entering_times(gradients).sum(-1))

    def contributions(self) -> Tensor:
        """(layers, batch, heads, tokens, tokens): attention times gradient."""
        pairs = zip(self.balanced.attention, self.balanced.gradient, strict=True)
        return torch.stack([weights * gradient[0] for weights, gradient in pairs])

    def attention(self) -> Tensor:
        """(layers, batch, patches, patches), the mean over heads."""
        maps = torch.stack([weights.mean(1) for weights in self.plain.attention])
        return self.patches(self.patches(maps).mT).mT

    def similarity(self) -> Tensor:
        """(batch, patches, patches): mean over layers of positive cosines of centred states."""
        states = self.patches(torch.stack(self.plain.hidden).mT).mT
        states = F.normalize(states - states.mean(-2, keepdim=True), dim=-1)
        return (states @ states.mT).clamp(min=0).mean(0)

    def flow(self, start: int) -> Tensor:
        """What reaches patches from the token that is read, through layers down to a first one.

        Each layer splits what a token has among itself and the tokens it attends to, as the skip
        connection and attention contribute to the class; what is below 0 gets nothing.
        """
        moved = self.contributions().sum(2).clamp(min=0)
        stayed = self.entering_times(self.joined).sum(-1).clamp(min=0)
        row = self.plain.pooling[0]
        for layer in reversed(range(start, len(moved))):
            row = row / (moved[layer].sum(-1) + stayed[layer]).clamp(min=1e-30)
            row = row * stayed[layer] + (row[:, None] @ moved[layer])[:, 0]
        return self.patches(row)


def contrastive(traced: Trace, classes: Tensor, places: Sequence[GradientEdge]) -> Sequence[Tensor]:
    """Balanced gradients of each class against the others, as they are probable."""
    own = F.one_hot(classes, traced.logits.shape[1]).to(traced.logits)
    others = traced.logits.detach().softmax(1) * (1 - own)
    traced.tape.rules = BALANCED
    try:
        return torch.autograd.grad(traced.logits, places, own - scaled(others), retain_graph=True)
    finally:
        traced.tape.rules = None


def positive(layers: Tensor) -> Tensor:
    """The sum over layers of what is above 0."""
    return layers.clamp(min=0).sum(0)


def scaled(maps: Tensor) -> Tensor:
    """Maps that sum up to 1."""
    return maps / maps.sum(-1, keepdim=True).clamp(min=1e-30)


def times(*maps: Tensor) -> Tensor:
    """The geometric mean of maps, whatever their scales."""
    return torch.stack([scaled(one).clamp(min=1e-12).log() for one in maps]).mean(0).exp()


def over(weights: Tensor, values: Tensor) -> Tensor:
    """For each patch, the sum of values as a row of weights weighs them."""
    return (weights @ values[..., None])[..., 0]


def bound(maps: Tensor) -> Tensor:
    """How attention maps, (layers, ...), bind patches; rows sum up to 1."""
    return scaled(maps.mean(0) + maps.mean(0).mT)


def blurred(maps: Tensor, grid: tuple[int, int], sigma: float) -> Tensor:
    near = torch.exp(-0.5 * (torch.arange(-2, 3, device=maps.device) / sigma) ** 2)
    kernel = torch.outer(near, near)[None, None] / near.sum() ** 2
    padded = F.pad(maps.reshape(-1, 1, *grid), (2, 2, 2, 2), mode="replicate")
    return F.conv2d(padded, kernel).flatten(1)


def candidates(of: Readings, mirrored: Readings, grid: tuple[int, int]) -> dict[str, Tensor]:
    """The maps of all formulas, (batch, patches)."""
    balanced, attention = of.balanced, of.attention()
    third, half = len(attention) // 3, len(attention) // 2
    bonds, mean = bound(attention), attention.mean(0)
    features = of.entering_times(balanced.hidden_gradient)
    held = of.held(balanced.hidden_gradient)
    e, gae, tiba = positive(held), of.patches(Gae()(balanced)[0]), of.patches(Tiba()(balanced)[0])
    received = of.patches(positive(of.contributions()).mean(1).sum(1))
    flow, both = of.flow(third), times(e, gae)
    e_mirrored = positive(mirrored.held(mirrored.balanced.hidden_gradient))
    both_mirrored = times(e_mirrored, of.patches(Gae()(mirrored.balanced)[0]))
    turned_back = both_mirrored.reshape(-1, *grid).flip(-1).flatten(1)

    def sharing(roots: Tensor, bonds: Tensor = bonds) -> Tensor:
        return roots + 2 * over(bonds, roots)

    return {
        "GAE, plain gradients": of.patches(Gae()(of.plain)[0]),
        "GAE": gae,
        "tiba, balanced gradients": tiba,
        "held evidence e, plain gradients": positive(of.held(of.plain.hidden_gradient)),
        "e": e,
        "e, signed": held.sum(0),
        "e, positive parts of single features": of.patches(positive(features).sum(-1)),
        "e, each layer scaled to sum 1": scaled(held.clamp(min=0)).sum(0),
        "e, last two thirds of the layers": positive(held[third:]),
        "e, first half of the layers": positive(held[:half]),
        "e, against the other classes (contrastive)": positive(of.held(of.contrast)),
        "flow from the class token with measured skip weights": of.flow(0),
        "the same, from a third of the layers on": flow,
        "contributions received through attention": received,
        "e times GAE, geometric mean": both,
        "e plus GAE, each scaled to sum 1": scaled(e) + scaled(gae),
        "e, blurred with a Gaussian of 0.7 patches": blurred(e, grid, 0.7),
        "root of e": e.sqrt(),
        "root of e times GAE": both.sqrt(),
        "root of e times tiba": times(e, tiba).sqrt(),
        "root of e times contributions received": times(e, received).sqrt(),
        "root of e times flow": times(e, flow).sqrt(),
        "root of e times GAE, mean with the mirrored photo": times(both, turned_back).sqrt(),
        "e, handed to what tokens attend to": over(scaled(mean).mT, e),
        "e, mean over what tokens attend to": over(scaled(mean), e),
        "e, mean over bound tokens": over(bonds, e),
        "e, mean over tokens with similar hidden states": over(scaled(of.similarity()), e),
        "e, mean by each layer's own attention": over(scaled(attention), held.relu()).sum(0),
        "exp of the mean over bound tokens of log (e times GAE)/2": over(bonds, both.log()).exp(),
        **{
            f"root of e, sharing {weight:g}": of.patches(Whence(sharing=weight)(balanced)[0])
            for weight in (0.25, 0.5, 1.0, 2.0)
        },
        "root of e, sharing 2, attention of the first half of the layers": sharing(
            e.sqrt(), bound(attention[:half])
        ),
        "fourth root of e, sharing 2": sharing(e**0.25),
        "root of (e times received), sharing 2": sharing(times(e, received).sqrt()),
        "root of (e times GAE), sharing 2": sharing(both.sqrt()),
        "root of (e times received times GAE), sharing 2": sharing(times(e, received, gae).sqrt()),
    }


def maps_of(loaded: LoadedModel, pixels: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """The maps of all formulas, (batch, height, width)."""
    here, mirrored = (Readings.of(loaded, p, classes) for p in (pixels, pixels.flip(-1)))
    grid, (height, width) = here.plain.layout.grid, pixels.shape[-2:]
    assert grid is not None
    found = candidates(here, mirrored, grid)
    shaped = {name: maps.reshape(-1, *grid) for name, maps in found.items()}
    return {name: upsample_maps(maps, (height, width)) for name, maps in shaped.items()}


def perturbation(loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> Figures:
    """Areas under the accuracy, for the predicted class and for the label."""
    pixels = stack_on_device([photo.pixels for photo in photos], loaded.device)
    truth = [LabelMapping().find_index(loaded, photo.sample) for photo in photos]
    labels = torch.tensor(truth, device=pixels.device)
    predicted = compute_logits(loaded, pixels).argmax(1)

    steps = (0.0, *FRACTIONS)

    def found(maps: Tensor, order: Order) -> Tensor:
        logits = delete_in_order(
            rank_units(maps.flatten(1), order),
            count_units(maps[0].numel(), steps),
            PhotoRunner(loaded, pixels),
            torch.arange(len(maps)),
            chunk_size=choose_chunk_size(loaded),
        )
        return area_under_curve(compute_curves(logits, labels)["accuracy"], steps).cpu()

    figures: Figures = {}
    for which, classes in (("predicted", predicted), ("target", labels)):
        for name, maps in maps_of(loaded, pixels, classes).items():
            of_class = {f"{sign}, {which}": found(maps, order) for sign, order in ORDERS.items()}
            figures.setdefault(name, {}).update(of_class)
    return figures


def segmented(loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> Figures:
    """What `compare_with_masks` counts for the predicted class."""
    pixels = stack_on_device([photo.pixels for photo in photos], loaded.device)
    masks = torch.stack([photo.mask for photo in photos if photo.mask is not None])
    maps = maps_of(loaded, pixels, compute_logits(loaded, pixels).argmax(1))
    return {name: compare_with_masks(one.cpu(), masks) for name, one in maps.items()}


def over_all(
    loaded: LoadedModel,
    folder: str,
    view: View,
    limit: int | None,
    judged: Callable[[LoadedModel, Sequence[PreparedPhoto]], Figures],
) -> Figures:
    """The figures of all photos of a folder, or of some drawn at random."""
    data, parts = datasets.load(folder), []
    names = draw_names(data.list_names(), limit, seed=0)
    with bar(f"Photos of {folder}", len(names)) as done:
        for start in range(0, len(names), BATCH):
            batch = [
                prepare_photo(loaded, data.read(name), view)
                for name in names[start : start + BATCH]
            ]
            parts.append(judged(loaded, batch))
            done(len(batch))
    return {
        name: {key: torch.cat([part[name][key] for part in parts]) for key in figures}
        for name, figures in parts[0].items()
    }


def table(areas: Figures, counts: Figures) -> str:
    """Markdown; each cell has even and odd photos."""
    columns = [*next(iter(areas.values())), *SEGMENTATION.values()]
    lines = [f"| formula | {' | '.join(columns)} |", "| --- " + "| ---: " * len(columns) + "|"]
    for name in areas:
        halves = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            whole = pool_figures({key: row[half] for key, row in counts[name].items()})
            means = [float(row[half].mean()) for row in areas[name].values()]
            halves.append([*means, *(100 * whole[key] for key in SEGMENTATION)])
        cells = [f"{even:.2f} / {odd:.2f}" for even, odd in zip(*halves, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder or name of an image classifier")
    parser.add_argument("--photos", required=True, help="labelled photos, for perturbation")
    parser.add_argument("--pets", required=True, help="photos with masks, for segmentation")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="draw so many photos of each")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    loaded = models.load(options.model, "image", device=options.device)
    areas = over_all(loaded, options.photos, "model", options.limit, perturbation)
    counts = over_all(loaded, options.pets, "whole", options.limit, segmented)
    found = table(areas, counts)
    print(found, end="")
    if options.out:
        write_atomically(options.out, found.encode())


if __name__ == "__main__":
    main()
