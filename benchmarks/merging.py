"""Do merged tokens share what they get as relevance does? Swin, PVT and SegFormer on toy pictures.

    python benchmarks/merging.py            # some minutes on one core of a CPU

Methods that multiply attention maps give each of the tokens that were merged into one an equal
share of what that one gets. Relevance by the rules `stable` passes the same operation by its
weights. Both are compared by Spearman's rank correlation over all tokens of a picture: at the
merging itself, and between whole explanations on the finest grid.

The models are small and trained here: one of four textures stands at a random place of a noisy
picture, and is the class.
"""

import argparse

import torch
import transformers
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from whence import Explainer, rules
from whence.tracing import record

SIZE, PATCH, SIDE = 64, 4, 16
GRID = SIZE // PATCH
METHODS = ("tiba", "gae", "rollout", "whence")


def make_pictures(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures, their classes, and where the texture stands, (count, patches)."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(count, 3, SIZE, SIZE, generator=generator) * 0.6
    classes = torch.randint(4, (count,), generator=generator)
    line = torch.arange(SIDE) // 2 % 2 * 2.0 - 1
    textures = torch.stack(
        [
            line.expand(SIDE, SIDE),
            line[:, None].expand(SIDE, SIDE),
            line * line[:, None],
            torch.ones(SIDE, SIDE),
        ]
    )
    corners = PATCH * torch.randint((SIZE - SIDE) // PATCH + 1, (count, 2), generator=generator)
    truth = torch.zeros(count, SIZE, SIZE)
    for number, (y, x) in enumerate(corners.tolist()):
        pictures[number, :, y : y + SIDE, x : x + SIDE] += textures[classes[number]]
        truth[number, y : y + SIDE, x : x + SIDE] = 1
    return pictures, classes, F.avg_pool2d(truth[:, None], PATCH).flatten(1)


def build(name: str) -> nn.Module:
    """A small classifier with two stages: 16 x 16 tokens, merged to 8 x 8."""
    torch.manual_seed(0)
    if name == "Swin":
        return transformers.SwinForImageClassification(
            transformers.SwinConfig(
                image_size=SIZE,
                patch_size=PATCH,
                embed_dim=32,
                depths=[2, 2],
                num_heads=[2, 4],
                window_size=4,
                drop_path_rate=0.0,
                num_labels=4,
            )
        )
    options = {
        "num_encoder_blocks": 2,
        "depths": [2, 2],
        "hidden_sizes": [32, 64],
        "num_attention_heads": [2, 4],
        "mlp_ratios": [2, 2],
        "drop_path_rate": 0.0,
        "num_labels": 4,
    }
    if name == "PVT":
        config = transformers.PvtConfig(
            image_size=SIZE,
            patch_sizes=[PATCH, 2],
            strides=[PATCH, 2],
            sequence_reduction_ratios=[2, 1],
            **options,
        )
        return transformers.PvtForImageClassification(config)
    config = transformers.SegformerConfig(
        patch_sizes=[7, 3], strides=[PATCH, 2], sr_ratios=[2, 1], **options
    )
    return transformers.SegformerForImageClassification(config)


def train(model: nn.Module, steps: int) -> float:
    """Train a model, and return its accuracy on pictures that it has not seen."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        pictures, classes, _ = make_pictures(32, seed=1000 + step)
        loss = F.cross_entropy(model(pictures).logits, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    pictures, classes, _ = make_pictures(200, seed=1)
    with torch.no_grad():
        guess = model.eval()(pictures).logits.argmax(-1)
    return float((guess == classes).float().mean())


class Rest(nn.Module):
    """The second stage of a model and its head, from tokens (batch, tokens, width).

    Args:
        model: The whole model.
        merges: Whether the tokens are those before they are merged.
    """

    def __init__(self, model: nn.Module, merges: bool) -> None:
        super().__init__()
        self._model, self._merges = model, merges

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, (batch, classes)."""
        merges, half = self._merges, GRID // 2
        model, head = self._model, self._model.classifier
        if hasattr(model, "swin"):
            first, second = model.swin.encoder.layers
            tokens = first.downsample(tokens, (GRID, GRID)) if merges else tokens
            for block in second.blocks:
                tokens = block(tokens, (half, half))[0]
            return head(model.swin.layernorm(tokens).mean(1))
        if merges:
            tokens = tokens.mT.reshape(len(tokens), -1, GRID, GRID)
        if hasattr(model, "pvt"):
            encoder = model.pvt.encoder
            tokens = encoder.patch_embeddings[1](tokens)[0] if merges else tokens
            for block in encoder.block[1]:
                tokens = block(tokens, half, half)[0]
            return head(encoder.layer_norm(tokens)[:, 0])
        stage = model.segformer.stages[1]
        tokens = stage.patch_embeddings(tokens)[0] if merges else tokens
        for block in stage.blocks:
            tokens = block(tokens, half, half)
        return head(stage.layer_norm(tokens).mean(1))


def find_merging(model: nn.Module) -> nn.Module:
    """The module that merges tokens."""
    if hasattr(model, "swin"):
        return model.swin.encoder.layers[0].downsample
    if hasattr(model, "pvt"):
        return model.pvt.encoder.patch_embeddings[1]
    return model.segformer.stages[1].patch_embeddings


def read_tokens(model: nn.Module, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens before and after they are merged, (batch, tokens, width)."""
    kept: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor | tuple) -> None:
        kept.extend([args[0], output[0] if isinstance(output, tuple) else output])

    hook = find_merging(model).register_forward_hook(keep)
    with torch.no_grad():
        model(pictures)
    hook.remove()
    before, after = kept
    return (before.flatten(2).mT if before.dim() == 4 else before).contiguous(), after


def average_fields(kernel: int, padding: int) -> Tensor:
    """The mean of the tokens that each merged one is made of: (merged, tokens)."""
    ones = torch.ones(1, 1, kernel, kernel)
    basis = torch.eye(GRID * GRID).reshape(-1, 1, GRID, GRID)
    shares = F.conv2d(basis, ones, stride=2, padding=padding).flatten(1).T
    return shares / shares.sum(-1, keepdim=True)


def correlate(a: Tensor, b: Tensor) -> float:
    """The mean of Spearman's correlation over pictures."""
    return sum(float(spearmanr(x, y).statistic) for x, y in zip(a, b, strict=True)) / len(a)


def compare_merging(name: str, model: nn.Module, pictures: Tensor, classes: Tensor) -> float:
    """Relevance of merged tokens, shared equally, against relevance of the tokens before."""
    before, after = read_tokens(model, pictures)
    relevance = []
    for merges, tokens in ((True, before), (False, after)):
        trace = record(Rest(model, merges), (), {"tokens": tokens}, "tokens")
        (found,) = trace.read(classes[:, None], trace.leaves, rules.get("stable"))
        relevance.append(found[0].sum(-1))
    merged = relevance[1][:, -((GRID // 2) ** 2) :]  # without a class token
    shares = average_fields(3, 1) if name == "SegFormer" else average_fields(2, 0)
    return correlate(merged @ shares.to(merged.dtype), relevance[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=30)
    parser.add_argument("--steps", type=int, default=120)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pictures, classes, truth = make_pictures(arguments.pictures, seed=2)
    print("| model | accuracy | at the merging |", " | ".join(METHODS), "| lrp |")
    print("| --- | ---: | ---: |", " | ".join("---:" for _ in METHODS), "| ---: |")
    for name in ("Swin", "PVT", "SegFormer"):
        for steps in (0, arguments.steps):
            model = build(name)
            accuracy = train(model, steps) if steps else None
            model.eval().double()
            inputs = pictures.double()
            at_merging = compare_merging(name, model, inputs, classes)
            explainer, request = Explainer(model), ({"pixel_values": inputs}, classes.tolist())
            lrp = explainer.explain(*request, method="lrp").scores
            cells = []
            for method in METHODS:
                scores = explainer.explain(*request, method=method).scores
                cells.append(f"{correlate(scores, lrp):.2f} ({hit(scores, truth):.0%})")
            what = "random" if accuracy is None else f"{accuracy:.1%}"
            print(
                f"| {name} | {what} | {at_merging:.2f} |",
                " | ".join(cells),
                f"| {hit(lrp, truth):.0%} |",
                flush=True,
            )


def hit(scores: Tensor, truth: Tensor) -> float:
    """The share of pictures whose highest patch has a part of the texture."""
    return float((truth.gather(1, scores.argmax(1, keepdim=True)) > 0).float().mean())


if __name__ == "__main__":
    main()
