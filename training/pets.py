"""Train the embedded image classifier, `pets`: cat or dog, at 160 pixels on a 16 x 16 grid.

    WHENCE_DATA=... python training/pets.py --out src/whence/demo/pets

Starts from the first eight blocks of a ViT-Ti trained on ImageNet, with patches shrunk from 16 to
10 pixels, and fine-tunes on the `trainval` split of the Oxford-IIIT Pet photos alone. Half of the
batches are mosaics of two photos with both labels, so that each class learns to look for its own
evidence. The breed is learnt beside the species, by a second head that is thrown away. Seeded; a
GPU takes a few minutes, a CPU some hours.
"""

import argparse
import csv
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

SIZE, PATCH, BLOCKS = 160, 10, 8
SPECIES = ["cat", "dog"]


def read_photos(folder: Path, split: str) -> tuple[Tensor, Tensor, Tensor]:
    """Read photos as uint8 (n, 3, size, size), with species and breed."""
    with (folder / "labels.csv").open() as file:
        everything = list(csv.DictReader(file))
    breeds = sorted({row["breed"] for row in everything})
    rows = [row for row in everything if row["split"] == split]
    pixels = torch.empty(len(rows), 3, SIZE, SIZE, dtype=torch.uint8)
    for n, row in enumerate(rows):
        image = Image.open(folder / "images" / f"{row['image']}.jpg").convert("RGB")
        pixels[n] = torch.from_numpy(np.array(image.resize((SIZE, SIZE)))).permute(2, 0, 1)
    species = torch.tensor([SPECIES.index(row["species"]) for row in rows])
    return pixels, species, torch.tensor([breeds.index(row["breed"]) for row in rows])


def build_initial_model(weights: dict[str, Tensor]) -> ViTForImageClassification:
    """Build a model of the ImageNet model's first blocks, with smaller patches and more of them."""
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=BLOCKS,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=SIZE,
        patch_size=PATCH,
        layer_norm_eps=1e-6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(SPECIES)),
        label2id={name: i for i, name in enumerate(SPECIES)},
    )
    model = ViTForImageClassification(config)
    named = dict(model.named_parameters())

    def assign(name: str, value: Tensor) -> None:
        found = [n for n in named if n.endswith(name)]
        assert len(found) == 1, (name, found)
        assert named[found[0]].shape == value.shape, (name, value.shape)
        with torch.no_grad():
            named[found[0]].copy_(value)

    assign("embeddings.cls_token", weights["cls_token"])
    assign("patch_embeddings.projection.weight", shrink_patches(weights["patch_embed.proj.weight"]))
    assign("patch_embeddings.projection.bias", weights["patch_embed.proj.bias"])
    assign("embeddings.position_embeddings", stretch_positions(weights["pos_embed"]))
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == BLOCKS)
    for n, block in enumerate(blocks):
        load_block(
            block,
            {
                k.removeprefix(f"blocks.{n}."): v
                for k, v in weights.items()
                if k.startswith(f"blocks.{n}.")
            },
        )
    return model


def load_block(block: nn.Module, weights: dict[str, Tensor]) -> None:
    """Fill a block of transformers from one of timm, finding parameters by shape and order."""
    query, key, value = (
        {"weight": w, "bias": b}
        for w, b in zip(
            weights["attn.qkv.weight"].chunk(3), weights["attn.qkv.bias"].chunk(3), strict=True
        )
    )
    linears = [m for m in block.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in block.modules() if isinstance(m, nn.LayerNorm)]
    order = {name: m for name, m in block.named_modules() if isinstance(m, nn.Linear)}
    assert len(linears) == 6
    assert len(norms) == 2
    for name, linear in order.items():
        if "quer" in name or "q_proj" in name:
            linear.load_state_dict(query)
        elif "key" in name or "k_proj" in name:
            linear.load_state_dict(key)
        elif "value" in name or "v_proj" in name:
            linear.load_state_dict(value)
        else:
            source = {(192, 192): "attn.proj", (768, 192): "mlp.fc1", (192, 768): "mlp.fc2"}
            prefix = source[tuple(linear.weight.shape)]
            linear.load_state_dict({k: weights[f"{prefix}.{k}"] for k in ("weight", "bias")})
    for norm, prefix in zip(norms, ("norm1", "norm2"), strict=True):
        norm.load_state_dict({k: weights[f"{prefix}.{k}"] for k in ("weight", "bias")})


def shrink_patches(weight: Tensor) -> Tensor:
    """Shrink filters so that they give on a patch what the old ones give on it enlarged."""
    old = weight.shape[-1]
    enlarge = F.interpolate(
        torch.eye(PATCH * PATCH).reshape(-1, 1, PATCH, PATCH), (old, old), mode="bilinear"
    ).flatten(1)  # (new pixels, old pixels)
    return (weight.flatten(2) @ enlarge.T).unflatten(-1, (PATCH, PATCH))


def stretch_positions(positions: Tensor) -> Tensor:
    side = math.isqrt(positions.shape[1] - 1)
    grid = positions[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, (SIZE // PATCH,) * 2, mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)


def normalize(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255 - 0.5) / 0.5


def augment(pixels: Tensor) -> Tensor:
    """Crop, flip, brighten and contrast at random, on the device of the photos."""
    n, device = len(pixels), pixels.device
    scale = torch.empty(n, device=device).uniform_(0.45, 1.0).sqrt()
    ratio = torch.empty(n, device=device).uniform_(-0.25, 0.25).exp()
    width, height = (scale * ratio).clamp(max=1), (scale / ratio).clamp(max=1)
    flip = torch.randint(0, 2, (n,), device=device) * 2 - 1
    shift_x = (1 - width) * torch.empty(n, device=device).uniform_(-1, 1)
    shift_y = (1 - height) * torch.empty(n, device=device).uniform_(-1, 1)
    zero = torch.zeros(n, device=device)
    theta = torch.stack([width * flip, zero, shift_x, zero, height, shift_y], 1).view(n, 2, 3)
    grid = F.affine_grid(theta, [n, 3, SIZE, SIZE], align_corners=False)
    images = F.grid_sample(
        pixels.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    contrast = torch.empty(n, 1, 1, 1, device=device).uniform_(0.7, 1.3)
    brightness = torch.empty(n, 3, 1, 1, device=device).uniform_(-20, 20)
    mean = images.mean((2, 3), keepdim=True)
    return ((images - mean) * contrast + mean + brightness).clamp(0, 255)


def make_mosaics(images: Tensor, labels: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Put a part of one photo beside or above a part of another; labels in proportion."""
    other = torch.randperm(len(images), device=images.device)
    cut = int(SIZE * float(torch.empty(1).uniform_(0.3, 0.7)))
    dim = -1 if torch.rand(1) < 0.5 else -2
    first = images.narrow(dim, (SIZE - cut) // 2, cut)
    second = images[other].narrow(dim, cut // 2, SIZE - cut)
    share = cut / SIZE
    mixed = [share * label + (1 - share) * label[other] for label in labels]
    return torch.cat([first, second], dim), mixed


def draw_batches(count: int, size: int, device: torch.device) -> Iterator[Tensor]:
    order = torch.randperm(count, device=device)
    yield from order[: count // size * size].split(size)


def train(
    model: nn.Module, data: tuple[Tensor, Tensor, Tensor], options: argparse.Namespace
) -> None:
    device = torch.device(options.device)
    pixels, species, breeds = (tensor.to(device) for tensor in data)
    breed_head = nn.Linear(192, int(breeds.max()) + 1).to(device)
    pooled: list[Tensor] = []
    model.classifier.register_forward_pre_hook(lambda _m, args: pooled.append(args[0]))
    model.to(device).train()
    species, breeds = F.one_hot(species).float(), F.one_hot(breeds).float()
    parameters = [*model.parameters(), *breed_head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, weight_decay=0.05)
    steps = options.epochs * (len(pixels) // options.batch)
    warm = steps // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(s / warm, 0.5 + 0.5 * math.cos(math.pi * (s - warm) / (steps - warm))),
    )
    for epoch in range(options.epochs):
        total = 0.0
        for chosen in draw_batches(len(pixels), options.batch, device):
            images = augment(pixels[chosen])
            labels = [species[chosen], breeds[chosen]]
            if torch.rand(1) < 0.5:
                images, labels = make_mosaics(images, labels)
            pooled.clear()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(pixel_values=normalize(images)).logits.float()
                breed_logits = breed_head(pooled[0]).float()
            loss = F.cross_entropy(logits, labels[0], label_smoothing=0.05)
            loss = loss + F.cross_entropy(breed_logits, labels[1], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(
            f"epoch {epoch + 1}/{options.epochs} loss {total / (len(pixels) // options.batch):.3f}"
        )
    model.classifier._forward_pre_hooks.clear()


@torch.no_grad()
def measure_accuracy(model: nn.Module, pixels: Tensor, species: Tensor, device: str) -> float:
    model.eval()
    right = 0
    for images, labels in zip(pixels.split(256), species.split(256), strict=True):
        logits = model(pixel_values=normalize(images.to(device))).logits
        right += int((logits.argmax(1).cpu() == labels).sum())
    return right / len(pixels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    folder = Path(os.environ["WHENCE_DATA"])
    imagenet = load_file(folder / "vit_tiny_in1k" / "model.safetensors")
    model = build_initial_model({name: weight.float() for name, weight in imagenet.items()})
    train(model, read_photos(folder / "pets160", "trainval"), options)
    pixels, species, _ = read_photos(folder / "pets160", "test")
    model.half().float()
    reached = measure_accuracy(model, pixels, species, options.device)
    print(f"species accuracy on the test split: {reached:.4f}")
    model.half().cpu().save_pretrained(options.out)
    ViTImageProcessor(
        size={"height": SIZE, "width": SIZE}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(options.out)
    (options.out / "training.json").write_text(
        json.dumps(
            {
                "species accuracy, test": round(reached, 4),
                "epochs": options.epochs,
                "batch": options.batch,
                "rate": options.rate,
                "seed": options.seed,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
