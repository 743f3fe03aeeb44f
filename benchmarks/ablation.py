"""Compare the formulas that were tried for the method whence.

    python benchmarks/ablation.py --model vit_tiny_in1k_hf --photos imagenet --pets pets

All formulas use the same evidence of a photo and a class. Maps are measured by the perturbation
test on labelled photos (areas under the accuracy as pixels become black) and by segmentation on
photos of pets with masks, viewed whole. Even and odd photos are apart, so that a choice made on one
half is tested on the other.

Gradients are balanced unless a name says otherwise. e is the method's: summed over layers, the
positive part of x times gradient, where x enters a block. "times" is the geometric mean of maps
scaled to sum 1. Tokens are linked ("bound") as in the method, by the mean attention plus its
transpose, and "sharing s" adds s times the mean over linked tokens.
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
from whence.benchmark.photos import PreparedPhoto, View, prepare_photo
from whence.benchmark.runner import draw_names
from whence.evidence import Evidence
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
from whence.targets import ClassScalars
from whence.tracing import Trace, record
from whence.tracing.backward import propagate_backward
from whence.tracing.dependence import find_fields

BATCH = 25
KINDS = ("attention", "gradient", "hidden", "hidden_gradient", "blocks")
ORDERS: dict[str, Order] = {"positive": "highest", "negative": "lowest"}
SEGMENTATION = {"pixel_accuracy": "pixel accuracy", "mIoU": "mIoU", "mAP": "mAP"}
# By formula and figure, one number for each photo.
Figures: TypeAlias = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Readings:
    """Evidence that formulas use, for one class of each photo.

    Attributes:
        balanced: Evidence with balanced gradients, and with relevance.
        plain: Evidence with plain gradients.
        contrast: Balanced gradients at the blocks' inputs of the class logit minus the mean of the
            others, weighted by their probabilities.
        skip: Balanced gradients of the class logit at the sums of attention and skip connection.
    """

    balanced: Evidence
    plain: Evidence
    contrast: Sequence[Tensor]
    skip: Sequence[Tensor]

    @classmethod
    def read(cls, loaded: LoadedModel, pixels: Tensor, classes: Tensor) -> "Readings":
        """Record one forward pass and read its evidence."""
        trace = record(loaded.model, (pixels,), {}, 0)
        fields = find_fields(trace, trace.sites[0], 0, pixels.shape)
        layout = find_layout(Layout(), pixels, fields)
        targets, stable = ClassScalars(classes[:, None]), rules.get("stable")
        plain = Evidence(trace, targets, layout, KINDS, stable)
        balanced = Evidence(
            trace, targets, layout, (*KINDS, "relevance"), stable, gradient_rules=BALANCED
        )
        skips = [trace.entries[block.skip_addition.index].output for block in plain.blocks]
        contrast = read_contrastive(trace, classes, [block.input_edge for block in plain.blocks])
        return cls(balanced, plain, contrast, trace.read(targets.classes, skips, BALANCED))

    def drop_prefix(self, scores: Tensor) -> Tensor:
        """Select the patches of (..., tokens)."""
        return scores[..., self.plain.layout.prefix or 0 :]

    def multiply_inputs(self, gradients: Sequence[Tensor]) -> Tensor:
        """Multiply the blocks' inputs by a gradient: (layers, batch, tokens, width)."""
        layers = len(self.plain.blocks)  # without the last block's output
        pairs = zip(self.plain.hidden[:layers], gradients[:layers], strict=True)
        return torch.stack([x * gradient.reshape(x.shape) for x, gradient in pairs])

    def get_evidence(self, gradients: Sequence[Tensor]) -> Tensor:
        """Compute the evidence at the blocks' inputs, for and against: (layers, batch, patches)."""
        return self.drop_prefix(self.multiply_inputs(gradients).sum(-1))

    def compute_contributions(self) -> Tensor:
        """Multiply attention by its gradient: (layers, batch, heads, tokens, tokens)."""
        pairs = zip(self.balanced.attention, self.balanced.gradient, strict=True)
        return torch.stack([weights * gradient[0] for weights, gradient in pairs])

    def average_attention(self) -> Tensor:
        """Average attention over heads: (layers, batch, patches, patches)."""
        maps = torch.stack([weights.mean(1) for weights in self.plain.attention])
        return self.drop_prefix(self.drop_prefix(maps).mT).mT

    def get_similarity(self) -> Tensor:
        """Average positive cosines of centred states over layers: (batch, patches, patches)."""
        states = self.drop_prefix(torch.stack(self.plain.hidden).mT).mT
        states = F.normalize(states - states.mean(-2, keepdim=True), dim=-1)
        return (states @ states.mT).clamp(min=0).mean(0)

    def compute_flow(self, start: int) -> Tensor:
        """Compute the flow from the pooled token to patches, from the last layer to a first one.

        Each layer splits a token's flow among itself and the tokens it attends to, as the skip
        connection and attention contribute to the class; negative contributions get nothing.
        """
        moved = self.compute_contributions().sum(2).clamp(min=0)
        stayed = self.multiply_inputs(self.skip).sum(-1).clamp(min=0)
        row = self.plain.pooling[0]
        for layer in reversed(range(start, len(moved))):
            row = row / (moved[layer].sum(-1) + stayed[layer]).clamp(min=1e-30)
            row = row * stayed[layer] + (row[:, None] @ moved[layer])[:, 0]
        return self.drop_prefix(row)


def read_contrastive(trace: Trace, classes: Tensor, edges: Sequence[GradientEdge]) -> list[Tensor]:
    """Read balanced gradients of each class against the others, weighted by probability."""
    own = F.one_hot(classes, trace.logits.shape[1]).to(trace.logits)
    others = trace.logits.detach().softmax(1) * (1 - own)
    with torch.no_grad():
        seed = own - normalize(others)
        values = dict(
            propagate_backward(trace.logits, [seed], [BALANCED], edges, batch=trace.batch)
        )
    return [values[number][0] for number in range(len(edges))]


def sum_positive(layers: Tensor) -> Tensor:
    """Sum the positive values over layers."""
    return layers.clamp(min=0).sum(0)


def normalize(maps: Tensor) -> Tensor:
    """Scale maps to sum 1."""
    return maps / maps.sum(-1, keepdim=True).clamp(min=1e-30)


def combine(*maps: Tensor) -> Tensor:
    """Combine maps by their geometric mean, whatever their scales."""
    return torch.stack([normalize(one).clamp(min=1e-12).log() for one in maps]).mean(0).exp()


def weigh(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply a matrix of weights by values, one for each patch."""
    return (weights @ values[..., None])[..., 0]


def link_patches(maps: Tensor) -> Tensor:
    """Link patches by attention maps, (layers, ...); rows sum to 1."""
    return normalize(maps.mean(0) + maps.mean(0).mT)


def blur(maps: Tensor, grid: tuple[int, int], sigma: float) -> Tensor:
    near = torch.exp(-0.5 * (torch.arange(-2, 3, device=maps.device) / sigma) ** 2)
    kernel = torch.outer(near, near)[None, None] / near.sum() ** 2
    padded = F.pad(maps.reshape(-1, 1, *grid), (2, 2, 2, 2), mode="replicate")
    return F.conv2d(padded, kernel).flatten(1)


def compute_candidates(
    here: Readings, mirrored: Readings, grid: tuple[int, int]
) -> dict[str, Tensor]:
    """Compute the maps of all formulas, (batch, patches)."""
    balanced, attention = here.balanced, here.average_attention()
    third, half = len(attention) // 3, len(attention) // 2
    links, mean = link_patches(attention), attention.mean(0)
    features = here.multiply_inputs(balanced.hidden_gradient)
    plain, contrast = map(here.get_evidence, (here.plain.hidden_gradient, here.contrast))
    evidence = here.get_evidence(balanced.hidden_gradient)
    e, gae = sum_positive(evidence), here.drop_prefix(Gae()(balanced)[0])
    tiba = here.drop_prefix(Tiba()(balanced)[0])
    received = here.drop_prefix(sum_positive(here.compute_contributions()).mean(1).sum(1))
    flow, both = here.compute_flow(third), combine(e, gae)
    e_mirrored = sum_positive(mirrored.get_evidence(mirrored.balanced.hidden_gradient))
    both_mirrored = combine(e_mirrored, here.drop_prefix(Gae()(mirrored.balanced)[0]))
    similar = normalize(here.get_similarity())
    by_layer = weigh(normalize(attention), evidence.relu()).sum(0)
    turned_back = both_mirrored.reshape(-1, *grid).flip(-1).flatten(1)

    def share(roots: Tensor, links: Tensor = links) -> Tensor:
        return roots + 2 * weigh(links, roots)

    return {
        "GAE, plain gradients": here.drop_prefix(Gae()(here.plain)[0]),
        "GAE": gae,
        "tiba, balanced gradients": tiba,
        "held evidence e, plain gradients": sum_positive(plain),
        "e": e,
        "e, signed": evidence.sum(0),
        "e, positive parts of single features": here.drop_prefix(sum_positive(features).sum(-1)),
        "e, each layer scaled to sum 1": normalize(evidence.clamp(min=0)).sum(0),
        "e, last two thirds of the layers": sum_positive(evidence[third:]),
        "e, first half of the layers": sum_positive(evidence[:half]),
        "e, against the other classes (contrastive)": sum_positive(contrast),
        "flow from the class token with measured skip weights": here.compute_flow(0),
        "the same, from a third of the layers on": flow,
        "contributions received through attention": received,
        "e times GAE, geometric mean": both,
        "e plus GAE, each scaled to sum 1": normalize(e) + normalize(gae),
        "e, blurred with a Gaussian of 0.7 patches": blur(e, grid, 0.7),
        "root of e": e.sqrt(),
        "root of e times GAE": both.sqrt(),
        "root of e times tiba": combine(e, tiba).sqrt(),
        "root of e times contributions received": combine(e, received).sqrt(),
        "root of e times flow": combine(e, flow).sqrt(),
        "root of e times GAE, mean with the mirrored photo": combine(both, turned_back).sqrt(),
        "e, handed to what tokens attend to": weigh(normalize(mean).mT, e),
        "e, mean over what tokens attend to": weigh(normalize(mean), e),
        "e, mean over bound tokens": weigh(links, e),
        "e, mean over tokens with similar hidden states": weigh(similar, e),
        "e, mean by each layer's own attention": by_layer,
        "exp of the mean over bound tokens of log (e times GAE)/2": weigh(links, both.log()).exp(),
        **{
            f"root of e, sharing {weight:g}": here.drop_prefix(Whence(sharing=weight)(balanced)[0])
            for weight in (0.25, 0.5, 1.0, 2.0)
        },
        "root of e, sharing 2, attention of the first half of the layers": share(
            e.sqrt(), link_patches(attention[:half])
        ),
        "fourth root of e, sharing 2": share(e**0.25),
        "root of (e times received), sharing 2": share(combine(e, received).sqrt()),
        "root of (e times GAE), sharing 2": share(both.sqrt()),
        "root of (e times received times GAE), sharing 2": share(combine(e, received, gae).sqrt()),
    }


def compute_maps(loaded: LoadedModel, pixels: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Compute the maps of all formulas, (batch, height, width)."""
    here, mirrored = (Readings.read(loaded, p, classes) for p in (pixels, pixels.flip(-1)))
    grid, (height, width) = here.plain.layout.grid, pixels.shape[-2:]
    if grid is None:
        raise ValueError("The model has no grid of patches.")
    return {
        name: upsample_maps(maps.reshape(-1, *grid), (height, width))
        for name, maps in compute_candidates(here, mirrored, grid).items()
    }


def measure_perturbation(loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> Figures:
    """Measure areas under the accuracy, for the predicted class and for the label."""
    pixels = stack_on_device([photo.pixels for photo in photos], loaded.device)
    truth = [LabelMapping().find_index(loaded, photo.sample) for photo in photos]
    labels = torch.tensor(truth, device=pixels.device)
    predicted = compute_logits(loaded, pixels).argmax(1)
    steps = (0.0, *FRACTIONS)

    def measure_area(maps: Tensor, order: Order) -> Tensor:
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
        for name, maps in compute_maps(loaded, pixels, classes).items():
            of_class = {
                f"{sign}, {which}": measure_area(maps, order) for sign, order in ORDERS.items()
            }
            figures.setdefault(name, {}).update(of_class)
    return figures


def measure_segmentation(loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> Figures:
    """Compare maps of the predicted class with masks."""
    pixels = stack_on_device([photo.pixels for photo in photos], loaded.device)
    masks = torch.stack([photo.mask for photo in photos if photo.mask is not None])
    maps = compute_maps(loaded, pixels, compute_logits(loaded, pixels).argmax(1))
    return {name: compare_with_masks(one.cpu(), masks) for name, one in maps.items()}


def measure_folder(
    loaded: LoadedModel,
    folder: str,
    view: View,
    limit: int | None,
    measure: Callable[[LoadedModel, Sequence[PreparedPhoto]], Figures],
) -> Figures:
    """Measure all photos of a folder, or some drawn at random."""
    data, parts = datasets.load(folder), []
    names = draw_names(data.list_names(), limit, seed=0)
    with bar(f"Photos of {folder}", len(names)) as done:
        for start in range(0, len(names), BATCH):
            batch = [
                prepare_photo(loaded, data.read(name), view)
                for name in names[start : start + BATCH]
            ]
            parts.append(measure(loaded, batch))
            done(len(batch))
    return {
        name: {key: torch.cat([part[name][key] for part in parts]) for key in figures}
        for name, figures in parts[0].items()
    }


def format_table(areas: Figures, counts: Figures) -> str:
    """Format a Markdown table; each cell has even and odd photos."""
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
    areas = measure_folder(loaded, options.photos, "model", options.limit, measure_perturbation)
    counts = measure_folder(loaded, options.pets, "whole", options.limit, measure_segmentation)
    found = format_table(areas, counts)
    print(found, end="")
    if options.out:
        write_atomically(options.out, found.encode())


if __name__ == "__main__":
    main()
