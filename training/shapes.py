"""Train a small CLIP on pictures of coloured shapes, to learn and to test explanations with.

    python training/shapes.py --out examples/shapes_clip

Pictures and captions are drawn by `training/scenes.py`, anew for every step. A caption names one
shape of its picture or two. Beside each stands a wrong one with the colour of one shape and the
form of another, so that the model must learn which belongs to which. The loss is CLIP's, where
every caption that holds for a picture counts as its own. The first quarter of the steps has one
shape a picture. Seeded; one core of a CPU takes about a quarter of an hour.
"""

import argparse
import json
import math
import random
from pathlib import Path

import torch
from PIL import Image
from scenes import (
    COLOR_NAMES,
    MOST,
    OPENINGS,
    SHAPES,
    Phrase,
    draw_scenes,
    find_matches,
    write_caption,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, PreTrainedTokenizerFast

SIZE, PATCH, LENGTH = 64, 8, 16
SPECIAL = ["<pad>", "<unknown>", "<start>", "<end>"]
WORDS = ["a", "an", "and", "of", "picture", "there", "is", "shape", *COLOR_NAMES, *SHAPES]
MEAN = STD = [0.5, 0.5, 0.5]
SAMPLES = {"star.jpg": 8, "cross.jpg": 13}  # pictures of three shapes to try it on, by their seeds


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token for each word."""
    words = {word: n for n, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, words[name]) for name in ("<start>", "<end>")]
    tokenizer.post_processor = processors.TemplateProcessing("<start> $A <end>", None, ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<start>",
        eos_token="<end>",
        pad_token="<pad>",
        unk_token="<unknown>",
        model_max_length=LENGTH,
    )


def build_model(width: int, blocks: int, text_width: int, text_blocks: int) -> CLIPModel:
    """Build a CLIP with random weights."""
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    text = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": text_width,
        "intermediate_size": 4 * text_width,
        "num_hidden_layers": text_blocks,
        "num_attention_heads": text_width // 32,
        "max_position_embeddings": LENGTH,
        **ends,
    }
    vision = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": blocks,
        "num_attention_heads": width // 32,
        "image_size": SIZE,
        "patch_size": PATCH,
    }
    shared = {"projection_dim": 64, "initializer_factor": 1.0}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, **shared))


def draw_caption(chance: random.Random, things: list[Phrase]) -> list[Phrase]:
    """Draw a caption that holds for a picture of these things."""
    kind = chance.random()
    if len(things) > 1 and kind < 0.35:
        return chance.sample(things, 2)
    phrase = chance.choice(things)
    if kind > 0.9:
        return [Phrase(phrase.color, None)]
    if kind > 0.8:
        return [Phrase(None, phrase.shape)]
    return [phrase]


def draw_wrong_caption(chance: random.Random, things: list[Phrase]) -> list[Phrase]:
    """Draw a caption of one thing's colour and another's form: wrong, but not by far."""
    if len(things) > 1:
        one, other = chance.sample(things, 2)
        return [Phrase(one.color, other.shape)]
    if chance.random() < 0.5:
        return [Phrase(chance.choice(COLOR_NAMES), things[0].shape)]
    return [Phrase(things[0].color, chance.choice(SHAPES))]


def draw_batch(
    chance: random.Random, generator: torch.Generator, count: int, most: int
) -> tuple[Tensor, list[str], Tensor]:
    """Draw pictures, right and wrong captions, and which holds for which (captions, pictures)."""
    scenes = draw_scenes(count, generator, size=(SIZE, SIZE), most=most)
    things = scenes.name_things()
    captions = [draw(chance, t) for draw in (draw_caption, draw_wrong_caption) for t in things]
    texts = [write_caption(phrases, chance.choice(OPENINGS)) for phrases in captions]
    return normalize(scenes.pixels), texts, find_matches(captions, scenes)


def normalize(pixels: Tensor) -> Tensor:
    return (pixels - MEAN[0]) / STD[0]


def save_samples(folder: Path) -> None:
    """Save pictures to try the model on, larger than it needs."""
    for name, seed in SAMPLES.items():
        generator = torch.Generator().manual_seed(seed)
        pixels = draw_scenes(1, generator, size=(256, 256), fewest=MOST).pixels[0]
        values = (pixels * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(values).save(folder / name, quality=90)


def compute_loss(per_text: Tensor, matches: Tensor) -> Tensor:
    """Compute CLIP's loss, where all captions that hold for a picture share its probability."""
    wanted = matches.float()
    fits = matches.any(1)  # a wrong caption may hold for no picture
    texts = F.cross_entropy(per_text[fits], wanted[fits] / wanted[fits].sum(1, keepdim=True))
    pictures = F.cross_entropy(per_text.T, (wanted / wanted.sum(0, keepdim=True)).T)
    return (texts + pictures) / 2


def train(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, options: argparse.Namespace):
    """Train on pictures drawn anew for every step."""
    device = torch.device(options.device)
    chance = random.Random(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.02)
    warm = max(options.steps // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            step / warm, 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (options.steps - warm))
        ),
    )
    for step in range(1, options.steps + 1):
        most = 1 if step < options.steps / 4 else MOST
        pixels, texts, matches = draw_batch(chance, generator, options.batch, most)
        tokens = tokenizer(texts, padding=True, return_tensors="pt").to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            per_text = model(
                input_ids=tokens["input_ids"],
                attention_mask=tokens["attention_mask"],
                pixel_values=pixels,
            ).logits_per_text.float()
        loss = compute_loss(per_text, matches)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        model.logit_scale.data.clamp_(max=math.log(100))
        if step % max(options.steps // 20, 1) == 0:
            reached = measure_accuracy(model, tokenizer, 100, options.seed + 1, device)
            model.train()
            print(
                f"step {step}/{options.steps} loss {float(loss.detach()):.3f}", reached, flush=True
            )


@torch.no_grad()
def measure_accuracy(
    model: CLIPModel,
    tokenizer: PreTrainedTokenizerFast,
    count: int,
    seed: int,
    device: str | torch.device,
) -> dict[str, float]:
    """Measure on new pictures how often the right caption wins.

    Returns:
        ``one of thirty``: pictures of one shape, among the captions "a red circle" … of all
        kinds. ``there or not``: pictures of two or three, how often the best of the thirty is one
        of those on the picture. ``which belongs to which``: pictures of a shape of one colour and
        another of another, how often the right of two captions wins against the swapped ones.
    """
    model.eval()
    generator = torch.Generator(device).manual_seed(seed)
    kinds = [Phrase(color, shape) for color in COLOR_NAMES for shape in SHAPES]
    figures = {}
    for name, few, many in [("one of thirty", 1, 1), ("there or not", 2, 3)]:
        scenes = draw_scenes(count, generator, size=(SIZE, SIZE), fewest=few, most=many)
        captions = [write_caption([kind]) for kind in kinds]
        best = compare(model, tokenizer, captions, scenes.pixels).argmax(0)
        held = find_matches([[kind] for kind in kinds], scenes)
        figures[name] = float(held.gather(0, best[None]).float().mean())
    scenes = draw_scenes(count, generator, size=(SIZE, SIZE), fewest=2, most=2)
    right = []
    for n, (one, other) in enumerate(scenes.name_things()):
        if one.color == other.color or one.shape == other.shape:
            continue
        swapped = [Phrase(one.color, other.shape), Phrase(other.color, one.shape)]
        captions = [write_caption([one, other]), write_caption(swapped)]
        scores = compare(model, tokenizer, captions, scenes.pixels[n : n + 1])
        right.append(float(scores[0] > scores[1]))
    figures["which belongs to which"] = sum(right) / len(right)
    return figures


def compare(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, texts: list[str], pixels: Tensor
) -> Tensor:
    """Compare texts with pictures: (texts, pictures)."""
    tokens = tokenizer(texts, padding=True, return_tensors="pt").to(pixels.device)
    return model(
        input_ids=tokens["input_ids"],
        attention_mask=tokens["attention_mask"],
        pixel_values=normalize(pixels),
    ).logits_per_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--text-width", type=int, default=64)
    parser.add_argument("--text-blocks", type=int, default=2)
    parser.add_argument("--held-out", type=int, default=1000, help="pictures to measure on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer = build_tokenizer()
    model = build_model(options.width, options.blocks, options.text_width, options.text_blocks)
    train(model, tokenizer, options)
    model.half().float()
    figures = measure_accuracy(
        model, tokenizer, options.held_out, options.seed + 1_000_000, options.device
    )
    print(json.dumps(figures, indent=1), flush=True)
    model.half().cpu().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    CLIPImageProcessor(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=MEAN,
        image_std=STD,
    ).save_pretrained(options.out)
    save_samples(options.out)
    settings = {name: getattr(options, name) for name in ("steps", "batch", "rate", "seed")}
    rounded = {name: round(figure, 4) for name, figure in figures.items()}
    (options.out / "training.json").write_text(json.dumps(rounded | settings, indent=1) + "\n")


if __name__ == "__main__":
    main()
