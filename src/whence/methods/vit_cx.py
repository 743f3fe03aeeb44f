"""ViT-CX: masks from clustered feature maps (Xie, Li, Cao, Zhang; IJCAI 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from whence._util.extras import import_extra
from whence._util.progress import bar
from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, register
from whence.methods.shared.attention_maps import check_layer
from whence.methods.shared.inputs import pixels_to_units
from whence.tracing.ops.products import HALF_TYPES


@register("vit_cx")
@dataclass(frozen=True)
class VitCx(Method):
    r"""Clustered feature maps of a layer as masks, weighted by the probability through each.

    Every channel of the patches' features, the input of the last attention, is a map on the grid.
    It is upsampled bilinearly to the image and scaled to 0 ... 1. Maps whose cosine distance is
    small are clustered (agglomerative clustering, complete linkage); the sum of a cluster's maps,
    scaled again, is a mask :math:`M_i`. With x the image, p the probability of the class and
    Gaussian noise :math:`Z_i`, the causal score of a mask and the map are

    .. math::
        s_i = p(x \odot M_i + Z_i \odot (1 - M_i)) - p(x + Z_i \odot (1 - M_i)) + p(x), \qquad
        S = \frac{1}{N} \sum_{i=1}^N s_i \frac{M_i}{\sum_j M_j}.

    The fraction corrects for pixels that many masks cover. The score of a patch is the sum of S
    over its pixels, less the lowest such sum: masks overlap so much that S is nearly the same
    everywhere. For the same reason the lowest :math:`s_i` is subtracted from all. Noise is drawn
    once for each mask from the seed, the same for every sample. Constant maps, which give NaN in
    the authors' code, are left out.

    Attributes:
        distance: Cosine distance, of complete linkage, from which clusters stay apart.
        noise: Standard deviation of the noise, in the units of the pixels that the model takes.
        seed: Seed of the noise.
        layer: Which attention's input is taken as features; negative numbers count from the last.
    """

    needs = ("value_input", "forwards")
    citation = "Xie, Li, Cao, Zhang: ViT-CX: Causal Explanation of Vision Transformers, IJCAI 2023"
    cost = "1 + 2 × masks, at most one mask a channel"  # noqa: RUF001
    unsteady_types = HALF_TYPES
    inputs = ("image",)

    distance: float = 0.1
    noise: float = 0.1
    seed: int = 0
    layer: int = -1

    def __post_init__(self) -> None:
        for option in ("distance", "noise"):
            value = getattr(self, option)
            if not 0 <= value < float("inf"):
                raise WhenceError(f"{option}={value} must be a number from 0 upwards.")

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        layout, image = evidence.layout, evidence.forwards.inputs[0]
        if layout.grid is None or len(layout.grid) != 2 or image.dim() != 4:
            raise WhenceError(
                "Method 'vit_cx' explains images only: its masks are maps of patches. For text, "
                "use another method."
            )
        layer = check_layer(self.layer, len(evidence.value_input))
        features = layout.to_units(evidence.value_input[layer].movedim(-1, 0))
        size = (image.shape[-2], image.shape[-1])
        maps = []
        with bar("masking", evidence.batch) as advance:
            for sample in range(evidence.batch):
                masks = _make_masks(
                    features[:, sample].reshape(-1, *layout.grid), size, self.distance
                )
                scores = self._score_masks(masks, evidence, sample)
                maps.append(_average_masks(evidence, masks, scores))
                advance(1)
        scores = torch.stack(maps, 1)
        return layout.to_tokens(scores - scores.amin(-1, keepdim=True))

    def _score_masks(self, masks: Tensor, evidence: Evidence, sample: int) -> Tensor:
        """Compute the causal score of each mask: (classes, masks)."""
        forwards, image = evidence.forwards, evidence.forwards.inputs[0][sample]
        at = torch.tensor([sample], device=evidence.logits.device)
        unchanged = evidence.targets.probabilities(evidence.logits[at], at)
        source = SeededRandom(self.seed)
        scores = [unchanged[:, :0]]
        for chunk in forwards.chunks(len(masks), "masking", max(1, forwards.rows_at_once // 2)):
            mask = masks[chunk, None]
            # Drawn one by one: a mask's noise depends neither on the chunk nor on the other masks.
            drawn = [source.draw_normal(*image.shape) for _ in mask]
            noise = self.noise * torch.stack(drawn).to(image) * (1 - mask)
            rows = torch.cat([image * mask + noise, image + noise])
            samples = at.expand(len(rows))
            probabilities = evidence.targets.probabilities(forwards([rows], samples), samples)
            masked, whole = probabilities.chunk(2, 1)
            scores.append(masked - whole + unchanged)
        return torch.cat(scores, 1)


def _make_masks(maps: Tensor, size: tuple[int, int], distance: float) -> Tensor:
    """Cluster maps, (channels, rows, columns), to masks of an image, (masks, height, width)."""
    large = _scale(F.interpolate(maps[None], size, mode="bilinear", align_corners=False)[0])
    large = large[large.amax((1, 2)) > 0]
    labels = _cluster(large.flatten(1), distance)
    masks = large.new_zeros(int(labels.max()) + 1 if len(labels) else 0, *size)
    return _scale(masks.index_add_(0, labels, large))


def _average_masks(evidence: Evidence, masks: Tensor, scores: Tensor) -> Tensor:
    """Average the masks' scores, (classes, masks), over the masks that cover each unit."""
    # Summed to units first, so that there is no map of pixels for each class.
    cover = masks.sum(0).clamp(min=torch.finfo(masks.dtype).tiny)
    share = pixels_to_units(evidence, masks / cover)
    if not len(masks):
        return scores.new_zeros(len(scores), share.shape[-1])
    # Without the common part, equal scores give zeros and not rounding errors.
    return (scores - scores.amin(1, keepdim=True)) @ share / len(masks)


def _scale(maps: Tensor) -> Tensor:
    """Shift and scale each map to 0 ... 1; constant ones become 0."""
    lowest, highest = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - lowest) / torch.where(highest > lowest, highest - lowest, 1)


def _cluster(vectors: Tensor, distance: float) -> Tensor:
    """Cluster vectors; return each one's cluster, numbered by first appearance."""
    if len(vectors) < 2:
        return torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
    clustering = import_extra("sklearn.cluster", "scikit-learn").AgglomerativeClustering(
        n_clusters=None, distance_threshold=distance, metric="precomputed", linkage="complete"
    )
    directions = F.normalize(vectors, dim=1)
    distances = (1 - directions @ directions.T).clamp(min=0)
    labels = clustering.fit(distances.cpu().double().numpy()).labels_.tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([numbers[label] for label in labels], device=vectors.device)
