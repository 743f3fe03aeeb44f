"""Does the map of a vision-language model lie on the object that is asked for?

A small LLaVA is trained on drawings of shapes, each of a colour of its own, and on the question
which colour one of them has. The colour of the answer stands in one place of the image only.

python benchmarks/vision_language.py
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from PIL import Image, ImageDraw
from safetensors.torch import load_model, save_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

SHAPES = ("circle", "square", "triangle")
INKS = {
    "red": (214, 60, 60),
    "green": (66, 160, 84),
    "blue": (62, 104, 200),
    "yellow": (232, 190, 60),
    "purple": (142, 80, 180),
}
SIDE, PATCH = 64, 16
WORDS = ("<pad>", "<unk>", "<s>", "</s>", "<image>", "what", "colour", "is", "the", "?", "it")
SPECIAL = 5
METHODS = (
    *("whence", "tiba", "gae", "rollout", "flashtrace"),
    *("input_x_gradient", "attnlrp", "lrp", "tam"),
)
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Drawing:
    """A picture of a circle, a square and a triangle.

    Attributes:
        image: The picture.
        colors: The colour of each shape, by its name.
        boxes: Left, top, right and bottom of each shape, in pixels.
    """

    image: Image.Image
    colors: dict[str, str]
    boxes: dict[str, Box]

    @property
    def pixels(self) -> Tensor:
        """The picture as the model takes it, (3, side, side), from -1 to 1."""
        values = torch.from_numpy(np.array(self.image)).permute(2, 0, 1)
        return values.float() / 127.5 - 1


def draw_shapes(random: np.random.Generator) -> Drawing:
    """Draw three shapes of different colours, each within a patch of a picture."""
    coarse = random.integers(190, 240, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    pen, across = ImageDraw.Draw(image), SIDE // PATCH
    colors, boxes = dict[str, str](), dict[str, Box]()
    names, places = random.permutation(list(INKS)), random.permutation(across**2)
    for shape, name, place in zip(SHAPES, names, places, strict=False):
        size = int(random.integers(11, 13))
        left, top = (
            int(at * PATCH + random.integers(1, 3)) for at in (place % across, place // across)
        )
        box = (left, top, left + size, top + size)
        colors[shape], boxes[shape] = str(name), box
        if shape == "circle":
            pen.ellipse(box, fill=INKS[name])
        elif shape == "square":
            pen.rectangle(box, fill=INKS[name])
        else:
            top_corner = ((box[0] + box[2]) // 2, box[1])
            pen.polygon([(box[0], box[3]), top_corner, (box[2], box[3])], fill=INKS[name])
    return Drawing(image, colors, boxes)


def build_tokenizer() -> Any:
    """A tokenizer of the few words there are."""
    words = (*WORDS, *SHAPES, *INKS)
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    inner.add_special_tokens(list(WORDS[:SPECIAL]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.WordPiece("##", cleanup=True)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **names, extra_special_tokens={"image_token": "<image>"}
    )


def build_model(tokenizer: Any) -> Any:
    """A small LLaVA: a random CLIP tower of one layer, and a Llama of two."""
    vision = transformers.CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        initializer_range=0.1,
        initializer_factor=5.0,
    )
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    # As in the training of LLaVA, the tower stays as it is; a token is mostly its own patch.
    tower = model.model.vision_tower.requires_grad_(False)
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            if "out_proj" in name:
                parameter.mul_(0.1)
    return model


def make_prompt(shape: str) -> str:
    """The question which colour a shape has, after the image's tokens."""
    return f"<s> {' '.join(['<image>'] * (SIDE // PATCH) ** 2)} {ask(shape)}"


def ask(shape: str) -> str:
    """The question alone."""
    return f"what colour is the {shape} ? it is"


def encode(tokenizer: Any, drawings: list[Drawing], prompts: list[str]) -> dict[str, Tensor]:
    """Pictures and prompts of one length as the model takes them."""
    ids = tokenizer(prompts, return_tensors="pt")["input_ids"]
    pixels = torch.stack([one.pixels for one in drawings])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}


def build(weights: Path | None = None) -> tuple[Any, Any]:
    """The trained toy and its tokenizer: trained now, or with weights that `main` saved."""
    if weights is None:
        return train()
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    load_model(model, weights)
    return model.eval(), tokenizer


def train(steps: int = 900, batch: int = 32, seed: int = 0) -> tuple[Any, Any]:
    """Train the toy on drawings that are new at each step; its tokenizer comes with it."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = build_tokenizer()
    model = build_model(tokenizer).train().to(device)
    learned = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learned, 1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.15)
    colors = torch.tensor(tokenizer.convert_tokens_to_ids(list(INKS)), device=device)
    for _ in range(steps):
        drawings = [draw_shapes(random) for _ in range(batch)]
        prompts = []
        for one in drawings:  # all three questions, one after the other
            shapes = [str(shape) for shape in random.permutation(SHAPES)]
            first, *others = (f"{ask(shape)} {one.colors[shape]}" for shape in shapes)
            prompts.append(" ".join([make_prompt(shapes[0]), first.split()[-1], *others]))
        inputs = encode(tokenizer, drawings, prompts)
        inputs = {name: x.to(device) for name, x in inputs.items()}
        logits, following = model(**inputs).logits[:, :-1], inputs["input_ids"][:, 1:]
        is_answer = torch.isin(following, colors)
        loss = F.cross_entropy(logits[is_answer], following[is_answer])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
    return model.cpu().eval(), tokenizer


def make_questions(count: int, seed: int = 1) -> tuple[list[Drawing], list[str]]:
    """Drawings that the toy has not seen, and a shape of each to be asked for."""
    random = np.random.default_rng(seed)
    drawings = [draw_shapes(random) for _ in range(count)]
    return drawings, [str(one) for one in random.choice(SHAPES, count)]


@torch.no_grad()
def measure_accuracy(model: Any, tokenizer: Any, count: int = 300) -> float:
    """The share of questions that are answered rightly."""
    drawings, asked = make_questions(count)
    found = (
        model(**encode(tokenizer, drawings, [make_prompt(shape) for shape in asked]))
        .logits[:, -1]
        .argmax(-1)
    )
    names = tokenizer.convert_ids_to_tokens(found.tolist())
    right = [one.colors[shape] for one, shape in zip(drawings, asked, strict=True)]
    return sum(map(str.__eq__, names, right)) / count


def measure_hits(model: Any, tokenizer: Any, method: str, count: int = 100) -> tuple[float, float]:
    """How often maps have their highest patch on the shape that was asked for.

    Returns:
        The share of questions, and the share by chance: of the patches that touch the shape.
    """
    from whence import Explainer, targets

    drawings, asked = make_questions(count)
    inputs = encode(tokenizer, drawings, [make_prompt(shape) for shape in asked])
    answers = [one.colors[shape] for one, shape in zip(drawings, asked, strict=True)]
    target = targets.token(token=tokenizer.convert_tokens_to_ids(answers))
    result = Explainer(model).explain(inputs, target, of="pixel_values", method=method)
    rows, columns = result.grid or (1, 1)
    on_shape = torch.zeros(count, rows, columns, dtype=torch.bool)
    for mask, one, shape in zip(on_shape, drawings, asked, strict=True):
        left, top, right, bottom = one.boxes[shape]
        mask[top // PATCH : bottom // PATCH + 1, left // PATCH : right // PATCH + 1] = True
    hits = on_shape.flatten(1).gather(1, result.scores.argmax(1, keepdim=True).cpu())
    return float(hits.float().mean()), float(on_shape.float().mean())


def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--weights", type=Path, help="Where to save the toy's weights.")
    asked = parser.parse_args()
    start = time.perf_counter()
    model, tokenizer = train(asked.steps)
    seconds = time.perf_counter() - start
    if asked.weights is not None:
        save_model(model, asked.weights)
    accuracy = measure_accuracy(model, tokenizer)
    print(f"{accuracy:.1%} of 300 answers are right, after {seconds:.0f} s of training")
    for method in METHODS:
        hits, chance = measure_hits(model, tokenizer, method, asked.questions)
        print(f"{method:18} {hits:6.1%}   (by chance {chance:.1%})")


if __name__ == "__main__":
    main()
