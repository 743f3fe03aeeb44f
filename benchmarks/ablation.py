"""Compare the formulas that were tried for the method whence, on photos.

    python benchmarks/ablation.py --model vit_tiny_in1k_hf --photos imagenet --pets pets --half 0

All formulas use the same evidence of a photo and a class, with balanced gradients. Maps of labelled
photos are measured by perturbation (areas between the accuracies as pixels become black), SRG, SaCo
(of patches) and how often a corner is highest; maps of photos with masks, viewed whole, by
segmentation and localisation. Choices were made on one half of the photos (--half 0 is every second
one, from the first on). For mosaics there is `whence benchmark gridpg`.

In names, e is what tokens hold, x · ∇x where blocks begin. k is what attention reads of them,
A ⊙ ∇A summed over queries, and a the same with each row of ∇A less its mean. Each is summed over
layers. B links patches by all attention maps and their transposes, its rows divided by their sums,
and u = B√max(e, 0). The target is the logit less the mean of all, unless a name says otherwise.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from whence import datasets, models, rules
from whence._util.files import write_atomically
from whence._util.progress import bar
from whence.benchmark.labels import LabelMapping
from whence.benchmark.masked_samples import find_grid
from whence.benchmark.mean_color import measure_mean_color
from whence.benchmark.photos import PreparedPhoto, View, prepare_photo, stack_masks
from whence.datasets import Dataset
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.faithfulness.photos import PhotoRunner
from whence.layout import Layout, find_layout
from whence.metrics.curves import area_between_curves, compute_curves, symmetric_relevance_gain
from whence.metrics.deletion import FRACTIONS, count_units, delete_in_order, rank_units, run_without
from whence.metrics.localization import localize
from whence.metrics.pixels import upsample_maps
from whence.metrics.saco import GROUPS, compute_saco, group_units, sum_groups
from whence.metrics.segmentation import compare_with_masks, has_object, pool_figures
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, compute_logits, stack_on_device
from whence.rules.balanced import BALANCED
from whence.targets import ClassScalars
from whence.targets.scalars import make_one_hot
from whence.tracing import record
from whence.tracing.dependence import find_fields, place_keys
from whence.tracing.flow.binding import needs_flow

BATCH = 25
SRG_STEPS = 20
NEEDS = ("attention", "gradient", "hidden", "hidden_gradient")
# By formula and figure, one number for each photo.
Figures: TypeAlias = dict[str, dict[str, Tensor]]
Measure: TypeAlias = Callable[[LoadedModel, Sequence[PreparedPhoto]], Figures]


class LogOdds(ClassScalars):
    """Log-odds of classes, log p/(1 - p)."""

    @override
    def make_seeds(
        self, outputs: Tensor, *, by_rules: bool = False, centered: bool = False
    ) -> Tensor:
        own = make_one_hot(self.classes, outputs)
        return own - normalize(outputs.softmax(-1) * (1 - own))


class Readings(NamedTuple):
    """What each layer says of a target at patches, each (layers, batch, patches)."""

    held: Tensor  # hidden states that enter blocks, times their gradients
    read: Tensor  # attention times its gradient, summed over heads and queries
    against_mean: Tensor  # the same, with gradients less their mean over keys
    against_average: Tensor  # the same, less what the query reads on average


def read_target(evidence: Evidence) -> Readings:
    """Read the evidence of one target."""
    blocks = len(evidence.layers)  # without the last block's output
    states = zip(evidence.hidden[:blocks], evidence.hidden_gradient[:blocks], strict=True)
    maps = zip(evidence.attention, evidence.gradient, strict=True)
    layers = []
    for (hidden, (at_hidden,)), (weights, (gradient,)) in zip(states, maps, strict=True):
        expected = (weights * gradient).sum(-1, keepdim=True)
        baselines = (torch.zeros_like(expected), gradient.mean(-1, keepdim=True), expected)
        reads = [(weights * (gradient - base)).sum((1, 2)) for base in baselines]
        layers.append(torch.stack([(hidden * at_hidden).sum(-1), *reads]))
    return Readings(*evidence.layout.to_units(torch.stack(layers, 1)))


def read_photos(
    loaded: LoadedModel, pixels: Tensor, classes: Tensor, targets: Sequence[str]
) -> tuple[list[Readings], Tensor]:
    """Record one forward pass: readings of targets, and links of patches.

    Raises:
        WhenceError: The tokens of the model do not pass all layers in one sequence.
    """
    trace = record(loaded.model, (pixels,), {}, 0)
    if needs_flow(trace):
        raise WhenceError("Formulas are compared on models with one sequence of tokens.")
    fields = find_fields(trace, place_keys(trace, trace.sites[0]), 0, pixels.shape)
    layout = find_layout(Layout(), pixels, fields)
    readings = []
    for name in targets:
        scalars = (LogOdds if name == "log-odds" else ClassScalars)(classes[:, None])
        options = {"gradient_rules": BALANCED, "centered": name == "centred"}
        evidence = Evidence(trace, scalars, layout, NEEDS, rules.get("stable"), **options)
        readings.append(read_target(evidence))
    attention = torch.stack([weights.mean(1) for weights in evidence.attention]).sum(0)
    among = layout.to_units(layout.to_units(attention).mT)
    return readings, normalize(among + among.mT)


def normalize(values: Tensor) -> Tensor:
    """Divide rows by their sums."""
    return values / values.sum(-1, keepdim=True).clamp(min=1e-30)


def take_root(values: Tensor) -> Tensor:
    """Take the root of absolute values, and keep the sign."""
    return values.sign() * values.abs().sqrt()


def average(links: Tensor, values: Tensor) -> Tensor:
    """Average values, (batch, patches), over the patches that each is linked to."""
    return (links @ values[..., None])[..., 0]


def share(links: Tensor, layers: Tensor) -> Tensor:
    """Compute u of the sum over layers: roots of what speaks for the target, at linked patches."""
    return average(links, layers.sum(0).clamp(min=0).sqrt())


def multiply(links: Tensor, layers: Tensor) -> Tensor:
    """Multiply the signed root of the sum over layers by u."""
    return take_root(layers.sum(0)) * share(links, layers)


def deepen(layers: Tensor) -> Tensor:
    """Weigh layers by how deep they are, by 1 on average."""
    weights = torch.arange(1, len(layers) + 1).to(layers)
    return layers * (weights / weights.mean())[:, None, None]


def compute_evidence(loaded: LoadedModel, pixels: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Compute the maps of all formulas for evidence, (batch, patches)."""
    targets = ("logit", "log-odds", "centred")
    (logit, odds, centred), links = read_photos(loaded, pixels, classes, targets)
    e, k, a, against_average = centred
    whole = e + 4 * a
    root, u = take_root(whole.sum(0)), share(links, whole)
    former = logit.held.clamp(min=0).sum(0).sqrt()
    return {
        "logit, e": logit.held.sum(0),
        "log-odds, e": odds.held.sum(0),
        "logit less the mean of all, e": e.sum(0),
        "logit, e, own root times linked": multiply(links, logit.held),
        "log-odds, the same": multiply(links, odds.held),
        "less the mean, the same": multiply(links, e),
        "e: held, x · ∇x": e.sum(0),
        "e, weights that grow with depth": deepen(e).sum(0),
        "k: read, A ⊙ ∇A": k.sum(0),
        "a: read against the mean key": a.sum(0),
        "read against what a query reads on average (the gradient before the softmax)": (
            against_average.sum(0)
        ),
        "a, weights that grow with depth": deepen(a).sum(0),
        "e + 4 k": (e + 4 * k).sum(0),
        "e + 4 a": whole.sum(0),
        "e + 4 × against the average read": (e + 4 * against_average).sum(0),  # noqa: RUF001
        "√e⁺ + 2 B√e⁺, positive parts of each layer (`shared_evidence`)": (
            former + 2 * average(links, former)
        ),
        r"±√\|e\| + 2 B(±√\|e\|), e + 4 a": root + 2 * average(links, root),
        r"±√\|e\| (±√\|e\| + u), e + 4 a": root * (root.abs() + u),
        "signed roots of single layers times u, e + 4 a": take_root(whole).sum(0) * u,
        r"±√\|e\| u², e + 4 a": root * u**2,
        r"±√\|e\| u, e + 2 a": multiply(links, e + 2 * a),
        r"**±√\|e\| u, e + 4 a: `whence`**": root * u,
        r"±√\|e\| u, e + 8 a": multiply(links, e + 8 * a),
        r"±√\|e\| u, e + 4 k": multiply(links, e + 4 * k),
        "`fullgrad_plus`, balanced": explain(loaded, pixels, classes, "fullgrad_plus"),
    }


def compute_locations(loaded: LoadedModel, pixels: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Compute the maps of all formulas for where the target lies, (batch, patches)."""
    (centred,), links = read_photos(loaded, pixels, classes, ("centred",))
    e, a = centred.held, centred.against_mean
    whole = e + 4 * a
    return {
        "u, of e": share(links, e),
        "B u, of e": average(links, share(links, e)),
        "u, of a": share(links, a),
        "B u, of a": average(links, share(links, a)),
        "u, of e + 4 a": share(links, whole),
        "**B u, of e + 4 a**": average(links, share(links, whole)),
        r"±√\|e\| u, of e + 4 a": multiply(links, whole),
        "`tiba`, balanced": explain(loaded, pixels, classes, "tiba"),
    }


def explain(loaded: LoadedModel, pixels: Tensor, classes: Tensor, method: str) -> Tensor:
    """Explain classes by another method with balanced gradients, (batch, patches)."""
    target = classes.tolist()
    found = loaded.explainer.explain(pixels, target=target, method=method, gradients="balanced")
    return found.scores.detach()


class Deletion(NamedTuple):
    """Labelled photos, their logits, and a model that runs on them without some of their parts."""

    loaded: LoadedModel
    pixels: Tensor
    logits: Tensor
    labels: Tensor
    color: tuple[float, ...]

    def delete(self, maps: Tensor, counts: Tensor, run: PhotoRunner) -> Tensor:
        """Delete the highest first, then the lowest: logits (2 * maps, steps, classes)."""
        ranks = torch.cat([rank_units(maps, "highest"), rank_units(maps, "lowest")])
        photos = torch.arange(len(ranks), device=ranks.device) % len(self.pixels)
        size = choose_chunk_size(self.loaded)
        return delete_in_order(ranks, counts, run, photos, chunk_size=size)

    def measure_areas(self, maps: Tensor, of_labels: Tensor) -> tuple[Tensor, Tensor]:
        """Measure negative less positive areas, of maps of the predicted class and the label."""
        steps = (0.0, *FRACTIONS)
        # Both together: where the two classes are the same, the model runs once.
        both = upsample_patches(self.loaded, torch.cat([maps, of_labels]), self.pixels).flatten(1)
        counts = count_units(both.shape[1], steps)
        logits = self.delete(both, counts, PhotoRunner(self.loaded, self.pixels))
        highest, lowest = compute_curves(logits, self.labels.repeat(4))["accuracy"].chunk(2)
        predicted, target = area_between_curves(highest, lowest, steps).chunk(2)
        return predicted, target

    def measure_gain(self, maps: Tensor) -> Tensor:
        """Measure the symmetric relevance gain (SRG)."""
        units, grid = maps.shape[1], find_grid(self.loaded, self.pixels)
        steps = [step / SRG_STEPS for step in range(1, SRG_STEPS + 1)]
        counts = torch.cat([torch.zeros(1).long(), count_units(units, steps, "nearest")])
        run = PhotoRunner(self.loaded, self.pixels, grid, "dataset", self.color)
        logits, predicted = self.delete(maps, counts, run), self.logits.argmax(1)
        highest, lowest = compute_curves(logits, predicted.repeat(2))["logit"].chunk(2)
        return symmetric_relevance_gain(highest, lowest, (counts.double() / units).to(lowest))

    def measure_saco(self, maps: Tensor) -> Tensor:
        """Measure SaCo, of groups of patches."""
        groups, numbers = group_units(maps), torch.arange(GROUPS, device=maps.device)
        deleted = (groups[:, None] == numbers[:, None]).flatten(0, 1)
        photos = torch.arange(len(maps), device=maps.device).repeat_interleave(GROUPS)
        run = PhotoRunner(self.loaded, self.pixels, find_grid(self.loaded, self.pixels), "mean")
        logits = run_without(deleted, run, photos, chunk_size=choose_chunk_size(self.loaded))
        logits = torch.cat([self.logits[:, None], logits.reshape(len(maps), GROUPS, -1)], 1)
        curve = compute_curves(logits, self.logits.argmax(1))["probability"]
        return compute_saco(sum_groups(maps, groups), curve[:, :1] - curve[:, 1:])

    def find_corners(self, maps: Tensor) -> Tensor:
        """Mark maps whose highest patch is a corner: 100, and 0 for others."""
        rows, columns = find_grid(self.loaded, self.pixels)
        highest = maps.argmax(1)
        row, column = highest // columns, highest % columns
        return ((row % (rows - 1) == 0) & (column % (columns - 1) == 0)) * 100.0


def upsample_patches(loaded: LoadedModel, maps: Tensor, pixels: Tensor) -> Tensor:
    """Upsample maps of patches to the size of photos."""
    height, width = pixels.shape[-2:]
    return upsample_maps(maps.reshape(-1, *find_grid(loaded, pixels)), (height, width))


def find_labels(loaded: LoadedModel, photos: Sequence[PreparedPhoto], predicted: Tensor) -> Tensor:
    """Find the classes of photos; one without a label counts as it is predicted."""
    found = [LabelMapping().find_index(loaded, one.sample) for one in photos]
    pairs = zip(found, predicted.tolist(), strict=True)
    return predicted.new_tensor([own if label is None else label for label, own in pairs])


def measure_evidence(
    loaded: LoadedModel, photos: Sequence[PreparedPhoto], color: tuple[float, ...]
) -> Figures:
    """Measure the formulas for evidence on labelled photos."""
    pixels = stack_on_device([photo.pixels for photo in photos], loaded.device)
    logits = compute_logits(loaded, pixels)
    classes = logits.argmax(1)
    labels = find_labels(loaded, photos, classes)
    deletion = Deletion(loaded, pixels, logits, labels, color)
    of_labels, figures = compute_evidence(loaded, pixels, labels), {}
    for name, maps in compute_evidence(loaded, pixels, classes).items():
        areas = deletion.measure_areas(maps, of_labels[name])
        figures[name] = {
            "predicted": areas[0],
            "target": areas[1],
            "srg": deletion.measure_gain(maps),
            "saco": deletion.measure_saco(maps),
            "corner": deletion.find_corners(maps),
        }
    return figures


def measure_locations(loaded: LoadedModel, photos: Sequence[PreparedPhoto]) -> Figures:
    """Compare formulas for where the target lies with masks.

    Localisation is of what is above the map's mean, and only where the model is right.
    """
    pixels = stack_on_device([photo.pixels for photo in photos], loaded.device)
    predicted = compute_logits(loaded, pixels).argmax(1)
    masks = stack_masks([photo.mask for photo in photos], pixels)
    counts = (predicted == find_labels(loaded, photos, predicted)) & has_object(masks)
    figures: Figures = {}
    for name, patches in compute_locations(loaded, pixels, predicted).items():
        maps = upsample_patches(loaded, patches, pixels)
        inside = localize(maps - maps.mean((1, 2), keepdim=True), masks)["share"]
        inside = inside.masked_fill(~counts, torch.nan)
        figures[name] = {**compare_with_masks(maps, masks), "localized": inside}
    return figures


def measure_each(
    loaded: LoadedModel, data: Dataset, names: Sequence[str], view: View, measure: Measure
) -> Figures:
    """Measure photos, some at a time."""
    parts = []
    with bar(f"Photos of {data.name}", len(names)) as done:
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            parts.append(measure(loaded, [prepare_photo(loaded, data.read(n), view) for n in some]))
            done(len(some))
    return {
        name: {key: torch.cat([part[name][key] for part in parts]).cpu() for key in figures}
        for name, figures in parts[0].items()
    }


def format_evidence(figures: dict[str, Tensor]) -> str:
    """Format areas, SRG, SaCo and corners of one formula."""
    means = (float(row.mean()) for row in figures.values())
    return "{:.1f} / {:.1f} | {:.2f} | {:.2f} | {:.1f}".format(*means)


def format_location(figures: dict[str, Tensor]) -> str:
    """Format mIoU, mAP and localisation of one formula."""
    counts = {key: row for key, row in figures.items() if key != "localized"}
    pooled, inside = pool_figures(counts), float(figures["localized"].nanmean())
    return f"{100 * pooled['mIoU']:.1f} / {100 * pooled['mAP']:.1f} | {100 * inside:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder or name of an image classifier")
    parser.add_argument("--photos", help="labelled photos, for perturbation, SRG and SaCo")
    parser.add_argument("--pets", help="photos with masks, for segmentation and localisation")
    parser.add_argument("--half", choices=("0", "1", "none"), default="none")
    parser.add_argument("--limit", type=int, help="take only so many photos of each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    if not options.photos and not options.pets:
        parser.error("Nothing to measure: give --photos, --pets or both.")
    half = slice(None) if options.half == "none" else slice(int(options.half), None, 2)
    loaded = models.load(options.model, "image", device=options.device)
    lines: list[str] = []
    if options.photos:
        lines += [
            "| candidate | areas | SRG | SaCo | corner |",
            "| --- | --- " + "| ---: " * 3 + "|",
        ]
        data = datasets.load(options.photos)
        names = sorted(data.list_names())[half][: options.limit]
        measure = partial(measure_evidence, color=measure_mean_color(loaded, data, names))
        found = measure_each(loaded, data, names, "model", measure)
        lines += [f"| {name} | {format_evidence(row)} |" for name, row in found.items()]
    if options.pets:
        lines += ["", "| reading | mIoU / mAP | localisation |", "| --- | --- | ---: |"]
        data = datasets.load(options.pets)
        names = sorted(data.list_names())[half][: options.limit]
        found = measure_each(loaded, data, names, "whole", measure_locations)
        lines += [f"| {name} | {format_location(row)} |" for name, row in found.items()]
    table = "\n".join(lines).lstrip() + "\n"
    print(table, end="")
    if options.out:
        write_atomically(options.out, table.encode())


if __name__ == "__main__":
    main()
