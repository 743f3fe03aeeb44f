"""Do maps of boxes and of segments lie on the objects? Toys are trained on drawings of shapes.

python benchmarks/dense.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from PIL import Image, ImageDraw
from torch import Tensor, nn

from whence import Explainer, WhenceError, targets

LABELS = ("ball", "crate", "tent")
INKS = ((205, 70, 85), (60, 110, 190), (235, 190, 70))
SIDE, PATCH, QUERIES = 64, 8, 3
STEPS, BATCHES = {"detector": 500, "segmenter": 350}, {"detector": 32, "segmenter": 16}
METHODS = ("whence", "tiba", "gae", "attnlrp", "input_x_gradient")
Box = tuple[int, int, int, int]
_SMOOTH = Image.Resampling.BICUBIC


@dataclass(frozen=True)
class Drawing:
    """A picture of shapes on a mottled ground.

    Attributes:
        image: The picture.
        labels: The shape in the left, middle and right third, as its place in `LABELS`; one more
            where there is none.
        boxes: Left, top, right and bottom of each, in pixels; zeros where there is none.
        mask: (side, side), 0 for the ground, or 1 and the label of the object there.
    """

    image: Image.Image
    labels: list[int]
    boxes: list[Box]
    mask: np.ndarray[Any, np.dtype[np.uint8]]

    @property
    def pixels(self) -> Tensor:
        """The picture as models take it, (3, side, side), from -1 to 1."""
        values = torch.from_numpy(np.array(self.image)).permute(2, 0, 1)
        return values.float() / 127.5 - 1


def draw_shapes(random: np.random.Generator) -> Drawing:
    """Draw a red ball, a blue crate or a yellow tent, or nothing, in each third of a picture."""
    coarse = random.integers(90, 180, (5, 5, 1)) + random.integers(-15, 16, (5, 5, 3))
    ground = Image.fromarray(coarse.astype(np.uint8)).resize((SIDE, SIDE), _SMOOTH)
    fine = random.integers(0, 24, (SIDE, SIDE, 1))
    image = Image.fromarray((np.asarray(ground) + fine).clip(0, 255).astype(np.uint8))
    mask, labels, boxes = Image.new("L", image.size), list[int](), list[Box]()
    absent = random.permutation(QUERIES)[: random.integers(QUERIES)]
    for third in range(QUERIES):
        labels.append(len(LABELS) if third in absent else int(random.integers(len(LABELS))))
        if third in absent:
            boxes.append((0, 0, 0, 0))
            continue
        size, width = int(random.integers(13, 20)), SIDE / QUERIES
        left = int(third * width + random.uniform(1, width - size - 1))
        top = int(random.integers(1, SIDE - size - 1))
        boxes.append((left, top, left + size, top + size))
        red, green, blue = (int(x) for x in INKS[labels[-1]] + random.integers(-20, 21, 3))
        _draw_shape(ImageDraw.Draw(image), boxes[-1], labels[-1], (red, green, blue))
        _draw_shape(ImageDraw.Draw(mask), boxes[-1], labels[-1], labels[-1] + 1)
    return Drawing(image, labels, boxes, np.array(mask))


def _draw_shape(
    pen: ImageDraw.ImageDraw, box: Box, label: int, ink: tuple[int, int, int] | int
) -> None:
    left, top, right, bottom = box
    if LABELS[label] == "ball":
        pen.ellipse(box, fill=ink)
    elif LABELS[label] == "crate":
        pen.rectangle(box, fill=ink)
    else:
        pen.polygon([(left, bottom), ((left + right) // 2, top), (right, bottom)], fill=ink)


def build_detector() -> nn.Module:
    """A small YOLOS."""
    config = transformers.YolosConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=[SIDE, SIDE],
        patch_size=PATCH,
        num_detection_tokens=QUERIES,
        use_mid_position_embeddings=False,
        initializer_range=0.1,
        id2label=dict(enumerate(LABELS)),
    )
    model = transformers.YolosForObjectDetection(config)
    embeddings = model.vit.embeddings  # which are all zeros, and slow to learn from there
    for one in (embeddings.position_embeddings, embeddings.detection_tokens):
        nn.init.normal_(one, std=0.5)
    return model


def build_segmenter() -> nn.Module:
    """A small SegFormer."""
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        sr_ratios=[4, 2, 1, 1],
        decoder_hidden_size=32,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
        id2label={0: "ground", **{n + 1: name for n, name in enumerate(LABELS)}},
    )
    return transformers.SegformerForSemanticSegmentation(config)


def compute_detection_loss(returned: Any, drawings: list[Drawing]) -> Tensor:
    """Query n is to find the object in third n."""
    labels = torch.tensor([one.labels for one in drawings])
    corners = torch.tensor([one.boxes for one in drawings]) / SIDE
    sizes = corners[..., 2:] - corners[..., :2]
    boxes = torch.cat([corners[..., :2] + sizes / 2, sizes], 2)
    classes = F.cross_entropy(returned.logits.flatten(0, 1), labels.flatten())
    return classes + 5 * (returned.pred_boxes - boxes)[labels < len(LABELS)].abs().mean()


def compute_segmentation_loss(returned: Any, drawings: list[Drawing]) -> Tensor:
    """Each place of the head's grid is to find what is drawn there."""
    masks = torch.from_numpy(np.stack([one.mask for one in drawings])).long()
    logits = F.interpolate(returned.logits, size=masks.shape[1:], mode="bilinear")
    return F.cross_entropy(logits, masks, torch.tensor([0.3, 1.0, 1.0, 1.0]))


def train(kind: str, steps: int | None = None, seed: int = 0) -> nn.Module:
    """Train a toy, "detector" or "segmenter", on drawings that are new at each step."""
    steps, batch = steps or STEPS[kind], BATCHES[kind]
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = build_detector() if kind == "detector" else build_segmenter()
    compute_loss = compute_detection_loss if kind == "detector" else compute_segmentation_loss
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps, pct_start=0.2)
    model.train()
    for _ in range(steps):
        drawings = [draw_shapes(random) for _ in range(batch)]
        pixels = torch.stack([one.pixels for one in drawings])
        loss = compute_loss(model(pixel_values=pixels), drawings)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def measure_accuracy(model: nn.Module, drawings: list[Drawing]) -> float:
    """The share of thirds, or of the places of shapes, that a toy names rightly."""
    with torch.no_grad():
        returned = model(pixel_values=torch.stack([one.pixels for one in drawings]))
    if hasattr(returned, "pred_boxes"):
        labels = torch.tensor([one.labels for one in drawings])
        return float((returned.logits.argmax(-1) == labels).float().mean())
    masks = torch.from_numpy(np.stack([one.mask for one in drawings])).long()
    logits = F.interpolate(returned.logits, size=masks.shape[1:], mode="bilinear")
    return float((logits.argmax(1) == masks)[masks > 0].float().mean())


def measure_boxes(model: nn.Module, drawings: list[Drawing], method: str) -> tuple[float, float]:
    """How often the map of a box is highest on its object, and the share of the map that is.

    A patch that the object touches counts as on it. The share is that of scores above 0.
    """
    explainer, hits, shares = Explainer(model), [], []
    for one in drawings:
        for query, label in enumerate(one.labels):
            if label == len(LABELS):
                continue
            target = targets.box(query, label)
            result = explainer.explain(one.pixels[None], target, method=method)
            left, top, right, bottom = one.boxes[query]
            inside = np.zeros((SIDE, SIDE), dtype=bool)
            inside[top : bottom + 1, left : right + 1] = True
            hit, share = _compare(result.scores[0].reshape(result.grid), inside)
            hits.append(hit)
            shares.append(share)
    return float(np.mean(hits)), float(np.mean(shares))


def measure_segments(model: nn.Module, drawings: list[Drawing], method: str) -> tuple[float, float]:
    """The same for all places that the toy gives to a label."""
    explainer, hits, shares = Explainer(model), [], []
    for one in drawings:
        for label in sorted(set(one.labels) - {len(LABELS)}):
            try:
                target = targets.pixel(label=label + 1)
                result = explainer.explain(one.pixels[None], target, method=method)
            except WhenceError:  # the toy does not see it
                continue
            hit, share = _compare(result.scores[0].reshape(result.grid), one.mask == label + 1)
            hits.append(hit)
            shares.append(share)
    return float(np.mean(hits)), float(np.mean(shares))


def _compare(scores: Tensor, inside: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[bool, float]:
    """Whether the highest cell is inside, and the share of scores above 0 that is."""
    rows, columns = scores.shape
    cells = inside.reshape(rows, SIDE // rows, columns, SIDE // columns).any((1, 3)).flatten()
    values = scores.flatten().clamp(min=0)
    on = torch.from_numpy(cells)
    if not values.any():  # as where the head's units are all off, and biases alone decide
        return False, 0.0
    return bool(on[values.argmax()]), float(values[on].sum() / values.sum())


def main() -> None:
    """Train both toys, and print the figures of all methods."""
    random = np.random.default_rng(1000)
    drawings = [draw_shapes(random) for _ in range(40)]
    for kind, measure in (("detector", measure_boxes), ("segmenter", measure_segments)):
        model = train(kind)
        print(f"{kind}: right {measure_accuracy(model, drawings):.1%}")
        for method in METHODS:
            hits, share = measure(model, drawings, method)
            print(f"  {method:<18} highest on the object {hits:.1%}, share of the map {share:.1%}")


if __name__ == "__main__":
    main()
