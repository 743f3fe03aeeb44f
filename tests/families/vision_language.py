"""Small random language models that read images, in float64, each with one prompt."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tests.families.models import enlarge_weights

IMAGE, START, END = 60, 61, 62  # token ids
TEXT = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "hidden_size": 16,
}
QWEN_WIDTH = 3 * 2 * 4 * 4
Built = tuple[Any, dict[str, Tensor]]


def make_ids(*parts: int | list[int]) -> Tensor:
    """Token ids of one prompt: lists of ids, and numbers of image tokens."""
    row = [[IMAGE] * part if isinstance(part, int) else part for part in parts]
    return torch.tensor([[one for part in row for one in part]])


def make_pixels(*shape: int, seed: int = 1) -> Tensor:
    """Pixels, never near 0."""
    pixels = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()
    return pixels + pixels.sign()


def build_model(name: str, **parts: Any) -> Any:
    """Build a model by the first part of its classes' names, in float64."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(image_token_id=IMAGE, **parts)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return enlarge_weights(model)


def _add_mask(ids: Tensor, **others: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **others}


def build_llava(images: int = 1) -> Built:
    """One image of 4 x 4 tokens; the tower's last layer is not read."""
    import transformers as t

    vision, text = t.CLIPVisionConfig(**VISION), t.LlamaConfig(**TEXT)
    model = build_model("Llava", vision_config=vision, text_config=text)
    ids = make_ids([3, 4], 16, [5, 6, 7]).repeat(images, 1)
    return model, _add_mask(ids, pixel_values=make_pixels(images, 3, 16, 16))


def build_llava_next() -> Built:
    """A photo of 32 x 16 pixels: a small copy and two tiles; each row of these ends in a token."""
    import transformers as t

    sizes = [[16, 32], [32, 16], [32, 32]]
    vision, text = t.CLIPVisionConfig(**VISION), t.LlamaConfig(**TEXT)
    model = build_model(
        "LlavaNext", vision_config=vision, text_config=text, image_grid_pinpoints=sizes
    )
    ids = make_ids([3, 4], 16 + 8 * (4 + 1), [5, 6, 7])
    size = torch.tensor([[32, 16]])
    return model, _add_mask(ids, pixel_values=make_pixels(1, 3, 3, 16, 16), image_sizes=size)


def build_paligemma() -> Built:
    """The image comes first, and attention within the prompt goes both ways."""
    import transformers as t

    vision = t.SiglipVisionConfig(**VISION, projection_dim=16)
    text = t.GemmaConfig(**TEXT, head_dim=8)
    model = build_model("PaliGemma", vision_config=vision, text_config=text, projection_dim=16)
    ids = make_ids(16, [5, 6, 7, 8])
    pixels = make_pixels(1, 3, 16, 16)
    return model, _add_mask(ids, token_type_ids=torch.zeros_like(ids), pixel_values=pixels)


def build_gemma3() -> Built:
    """Patches are pooled, 2 x 2 of them to a token."""
    import transformers as t

    kinds = ["sliding_attention", "full_attention"]
    text = t.Gemma3TextConfig(**TEXT, head_dim=8, sliding_window=8, layer_types=kinds)
    vision = t.SiglipVisionConfig(**VISION)
    model = build_model(
        "Gemma3",
        vision_config=vision,
        text_config=text,
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
    )
    ids = make_ids([3, 4, START], 4, [END, 5, 6])
    kinds_of_tokens = (ids == IMAGE).long()
    pixels = make_pixels(1, 3, 16, 16)
    return model, _add_mask(ids, token_type_ids=kinds_of_tokens, pixel_values=pixels)


def build_idefics3(name: str = "Idefics3") -> Built:
    """Two crops of an image, of each of which 2 x 2 patches are one token."""
    import transformers as t

    model = build_model(
        name, vision_config=VISION, text_config=t.LlamaConfig(**TEXT), scale_factor=2
    )
    ids = make_ids([3, START], 4, [START], 4, [END, 5, 6])
    mask = torch.ones(1, 2, 16, 16, dtype=torch.long)
    pixels = make_pixels(1, 2, 3, 16, 16)
    return model, _add_mask(ids, pixel_values=pixels, pixel_attention_mask=mask)


def build_smolvlm() -> Built:
    """As Idefics3."""
    return build_idefics3("SmolVLM")


def build_internvl() -> Built:
    """2 x 2 patches are one token."""
    import transformers as t

    vision = VISION | {"image_size": [16, 16], "patch_size": [4, 4]}
    text = t.Qwen2Config(**TEXT)
    model = build_model("InternVL", vision_config=vision, text_config=text, downsample_ratio=0.5)
    ids = make_ids([3, 4], 4, [5, 6, 7])
    return model, _add_mask(ids, pixel_values=make_pixels(1, 3, 16, 16))


def build_qwen(name: str = "Qwen2VL", **sizes: Any) -> Any:
    """A model that takes flattened patches of images of any sizes; 2 x 2 patches are one token."""
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = QWEN_VISION | (sizes or {"embed_dim": 16, "mlp_ratio": 2})
    return build_model(
        name,
        text_config=TEXT | {"rope_parameters": rope},
        vision_config=vision,
        video_token_id=59,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )


def build_qwen2_5() -> Any:
    """As Qwen2-VL; its vision tower attends within windows."""
    sizes = {"out_hidden_size": 16, "intermediate_size": 32, "window_size": 16}
    return build_qwen("Qwen2_5_VL", **sizes, fullatt_block_indexes=[1])


def make_images(*sizes: tuple[int, int]) -> list[Tensor]:
    """Images of so many rows and columns of patches, (channels, height, width)."""
    return [make_pixels(3, 4 * h, 4 * w, seed=7 + n) for n, (h, w) in enumerate(sizes)]


def flatten_images(images: Sequence[Tensor]) -> dict[str, Tensor]:
    """What Qwen2-VL's processor makes of images: rows of patches, and their numbers.

    A plain loop: block by block of 2 x 2 patches, and in a patch channels, then two equal frames.
    """
    rows, sizes = [], []
    for image in images:
        height, width = image.shape[1] // 4, image.shape[2] // 4
        sizes.append([1, height, width])
        for top, left in itertools.product(range(0, height, 2), range(0, width, 2)):
            for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
                patch = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                rows.append(torch.stack([patch, patch], 1).flatten())
    return {"pixel_values": torch.stack(rows), "image_grid_thw": torch.tensor(sizes)}


def make_prompts(images: Sequence[Sequence[int]], **others: Tensor) -> dict[str, Tensor]:
    """Padded prompts, given the numbers of image tokens of each image of each prompt."""
    rows = []
    for number, counts in enumerate(images):
        parts: list[int | list[int]] = [[3 + number, 4]]
        for count in counts:
            parts += [[START], count, [END]]
        rows.append(make_ids(*parts, [5, 6, 7 + number])[0])
    ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, **others}


def build_mllama() -> Built:
    """Words attend to the tokens of the tower, of two tiles."""
    sizes = {"attention_heads": 2, "num_global_layers": 1, "vision_output_dim": 32}
    sizes |= {"max_num_tiles": 2, "intermediate_layers_indices": [1]}
    sizes["supported_aspect_ratios"] = [[1, 1], [1, 2], [2, 1]]
    vision = {key: value for key, value in VISION.items() if key != "num_attention_heads"}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text = TEXT | {"num_hidden_layers": 3, "cross_attention_layers": [1], "rope_parameters": rope}
    model = build_model("Mllama", vision_config=vision | sizes, text_config=text)
    ids = make_ids([3], 1, [5, 6, 7])
    tiles = {
        "aspect_ratio_ids": torch.tensor([[2]]),
        "aspect_ratio_mask": torch.ones(1, 1, 2, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, 5, 1, 2, dtype=torch.long),
    }
    return model, _add_mask(ids, pixel_values=make_pixels(1, 1, 2, 3, 16, 16), **tiles)


CASES: dict[str, Callable[[], Built]] = {
    "llava": build_llava,
    "llava_next": build_llava_next,
    "paligemma": build_paligemma,
    "gemma3": build_gemma3,
    "idefics3": build_idefics3,
    "smolvlm": build_smolvlm,
    "internvl": build_internvl,
}


def build(name: str) -> Built:
    """Build a model of `CASES`, with the inputs of one prompt."""
    model, inputs = CASES[name]()
    try:
        with torch.no_grad():
            model(**inputs)
    except RuntimeError as error:
        pytest.skip(f"this release of transformers has no {name} in float64: {error}")
    return model, inputs


def silence_tower(model: nn.Module) -> None:
    """Have the attention of the vision tower add nothing: a token is then made of its patches."""
    for name, module in model.named_modules():
        in_tower = "vision" in name or "visual" in name
        ends = ("out_proj", "attn.proj", "attention.projection_layer")
        if in_tower and isinstance(module, nn.Linear) and name.endswith(ends):
            nn.init.zeros_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def embed_tokens(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """What enters the first layer of the language model: (batch, tokens, width)."""
    entered = []
    ends = ("language_model.layers.0", "text_model.layers.0")
    (layer,) = (module for name, module in model.named_modules() if name.endswith(ends))
    hook = layer.register_forward_pre_hook(
        lambda _, args, kwargs: entered.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    model(**inputs)
    hook.remove()
    return entered[0]
