"""Models that write a text about a photo: the next token, by the words and by the photo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.survey.case import (
    BOS,
    IMAGE,
    SPECIAL,
    TEXT,
    VISION,
    WIDTH,
    WORDS,
    SurveyCase,
    make_ids,
    make_photos,
    of_transformers,
    random_numbers,
)
from tests.survey.photos import SWIN
from tests.survey.sequences import BART

TASK = "image and text to text"
LLAMA = {**TEXT, "model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": False}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
CLIP_TOWER = {**VISION, "model_type": "clip_vision_model", "projection_dim": WIDTH}
SIGLIP_TOWER = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
MARK = {"image_token_id": IMAGE, "image_token_index": IMAGE}
LLAVA = {
    **MARK,
    "text_config": LLAMA,
    "vision_config": CLIP_TOWER,
    "vision_feature_layer": -1,
    "image_seq_length": 16,
}
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
QWEN_TOWER = {
    "depth": 2,
    "embed_dim": WIDTH,
    "hidden_size": WIDTH,
    "num_heads": 2,
    "intermediate_size": 24,
    "mlp_ratio": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "out_hidden_size": WIDTH,
    "window_size": 16,
    "fullatt_block_indexes": [1],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
QWEN_TEXT = {**TEXT, "num_key_value_heads": 2, "rope_scaling": ROPE, "rope_parameters": ROPE}
QWEN = {
    "text_config": QWEN_TEXT,
    "vision_config": QWEN_TOWER,
    **MARK,
    "video_token_id": 5,
    "vision_start_token_id": 6,
    "vision_end_token_id": 7,
}
GEMMA = {**LLAMA, "model_type": "gemma", "head_dim": 8}
GEMMA3_TEXT = {
    **LLAMA,
    "model_type": "gemma3_text",
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
GEMMA3 = {
    **MARK,
    "text_config": GEMMA3_TEXT,
    "vision_config": SIGLIP_TOWER,
    "mm_tokens_per_image": 4,
}
IDEFICS3 = {
    **MARK,
    "text_config": LLAMA,
    "vision_config": VISION,
    "scale_factor": 2,
    "pad_token_id": 0,
}
INTERNVL = {
    **MARK,
    "text_config": QWEN2,
    "vision_config": {**VISION, "image_size": [32, 32], "patch_size": [8, 8]},
    "downsample_ratio": 0.5,
}
BLIP2 = {
    "vision_config": VISION,
    "qformer_config": {
        **TEXT,
        "encoder_hidden_size": WIDTH,
        "cross_attention_frequency": 1,
    },
    "text_config": {**TEXT, "model_type": "opt", "ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "num_query_tokens": 4,
    "image_text_hidden_size": 8,
    **MARK,
}
BLIP = {
    "text_config": {**TEXT, "encoder_hidden_size": WIDTH, "is_decoder": True},
    "vision_config": VISION,
    "projection_dim": 8,
    "image_text_hidden_size": 8,
}
MLLAMA = {
    **MARK,
    "text_config": {
        **LLAMA,
        "model_type": "mllama_text_model",
        "cross_attention_layers": [1],
        "rope_scaling": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "vision_config": {
        "hidden_size": WIDTH,
        "attention_heads": 2,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "intermediate_size": 24,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 32,
        "image_size": 32,
        "patch_size": 8,
        "max_num_tiles": 1,
        "supported_aspect_ratios": [[1, 1]],
    },
}
GIT = {**TEXT, "vision_config": VISION, "num_image_with_embedding": None}
KOSMOS = {
    "text_config": {
        **SPECIAL,
        "vocab_size": WORDS,
        "embed_dim": WIDTH,
        "layers": 2,
        "ffn_dim": 24,
        "attention_heads": 2,
        "max_position_embeddings": 64,
    },
    "vision_config": VISION,
    "latent_query_num": 4,
}
PIX2STRUCT = {
    "text_config": {
        **SPECIAL,
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 2,
        "decoder_start_token_id": BOS,
    },
    "vision_config": {
        "hidden_size": WIDTH,
        "patch_embed_hidden_size": 12,
        "d_ff": 24,
        "d_kv": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "seq_len": 8,
    },
}
VIT_TO_GPT = {
    "encoder": {**VISION, "model_type": "vit"},
    "decoder": {
        **SPECIAL,
        "model_type": "gpt2",
        "n_embd": WIDTH,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": WORDS,
        "n_positions": 32,
        "is_decoder": True,
        "add_cross_attention": True,
    },
}
TROCR = {
    "encoder": {**VISION, "model_type": "deit"},
    "decoder": {
        **BART,
        "model_type": "trocr",
        "is_decoder": True,
        "add_cross_attention": True,
        "cross_attention_hidden_size": WIDTH,
    },
}
DONUT = {
    "encoder": {**SWIN, "model_type": "donut-swin"},
    "decoder": {**BART, "model_type": "mbart", "is_decoder": True, "add_cross_attention": True},
}


def _make_prompt(images: int, **more: Any) -> dict[str, Any]:
    """Two prompts with a run of image tokens after the first token."""
    ids = make_ids(2, images + 6)
    ids[:, 0], ids[:, 1 : images + 1] = BOS, IMAGE
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def _make_photo_prompt(images: int = 16) -> dict[str, Any]:
    return _make_prompt(images, **make_photos(32))


def _make_tiles() -> dict[str, Any]:
    """Each photo is one crop of a dimension of its own."""
    return _make_prompt(4, pixel_values=random_numbers(2, 1, 3, 32, 32))


def _make_next() -> dict[str, Any]:
    """Two crops of each photo, the whole one and one tile, as LLaVA-NeXT takes them."""
    return _make_prompt(
        36, pixel_values=random_numbers(2, 2, 3, 32, 32), image_sizes=torch.tensor([[32, 32]] * 2)
    )


def _make_flat_patches() -> dict[str, Any]:
    """Patches of two photos in one row, 4 by 4 each, merged two by two."""
    inputs = _make_prompt(
        4,
        pixel_values=random_numbers(2 * 16, 3 * 2 * 4 * 4),
        image_grid_thw=torch.tensor([[1, 4, 4]] * 2),
    )
    return {**inputs, "mm_token_type_ids": (inputs["input_ids"] == IMAGE).long()}


def _make_gemma3() -> dict[str, Any]:
    inputs = _make_photo_prompt(4)
    return {**inputs, "token_type_ids": (inputs["input_ids"] == IMAGE).long()}


def _make_paligemma() -> dict[str, Any]:
    inputs = _make_photo_prompt(16)
    return {**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"])}


def _make_mllama() -> dict[str, Any]:
    inputs = _make_prompt(1, pixel_values=random_numbers(2, 1, 1, 3, 32, 32))
    ids = inputs["input_ids"]
    return {
        **inputs,
        "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(2, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(*ids.shape, 1, 1, dtype=torch.long),
    }


def _make_kosmos() -> dict[str, Any]:
    inputs = _make_photo_prompt(4)
    return {**inputs, "image_embeds_position_mask": (inputs["input_ids"] == IMAGE).long()}


def _make_caption() -> dict[str, Any]:
    ids = make_ids(2, 5)
    return {**make_photos(32), "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _make_written() -> dict[str, Any]:
    return {**make_photos(32), "decoder_input_ids": torch.tensor([[BOS, 9, 12], [BOS, 20, 31]])}


def _make_pix2struct() -> dict[str, Any]:
    patches = random_numbers(2, 8, 14)
    patches[..., 0] = torch.arange(8) // 4
    patches[..., 1] = torch.arange(8) % 4
    return {
        "flattened_patches": patches,
        "attention_mask": torch.ones(2, 8, dtype=torch.long),
        "decoder_input_ids": torch.tensor([[BOS, 9, 12], [BOS, 20, 31]]),
    }


Make = Callable[[], dict[str, Any]]
GENERATION = "ForConditionalGeneration"
# The family, the class where it is not family + ForConditionalGeneration, sizes and inputs.
FAMILIES: list[tuple[str, str, dict[str, Any], Make]] = [
    ("Llava", "", LLAVA, _make_photo_prompt),
    ("VipLlava", "", {**LLAVA, "vision_feature_layers": [-1, -2]}, _make_photo_prompt),
    (
        "LlavaNext",
        "",
        {**LLAVA, "image_grid_pinpoints": [[32, 32]]},
        _make_next,
    ),
    (
        "LlavaOnevision",
        "",
        {
            **LLAVA,
            "text_config": QWEN2,
            "vision_config": SIGLIP_TOWER,
            "image_grid_pinpoints": [[32, 32]],
            "vision_feature_select_strategy": "full",
        },
        _make_next,
    ),
    (
        "AyaVision",
        "",
        {**GEMMA3, "text_config": {**LLAMA, "model_type": "cohere2"}},
        lambda: _make_photo_prompt(4),
    ),
    ("Qwen2VL", "", QWEN, _make_flat_patches),
    ("Qwen2_5_VL", "", QWEN, _make_flat_patches),
    ("Qwen3VL", "", QWEN, _make_flat_patches),
    (
        "PaliGemma",
        "",
        {**MARK, "text_config": GEMMA, "vision_config": SIGLIP_TOWER, "projection_dim": WIDTH},
        _make_paligemma,
    ),
    ("Gemma3", "", GEMMA3, _make_gemma3),
    ("Idefics3", "", IDEFICS3, _make_tiles),
    ("SmolVLM", "", IDEFICS3, _make_tiles),
    ("InternVL", "", INTERNVL, lambda: _make_photo_prompt(4)),
    ("Mllama", "", MLLAMA, _make_mllama),
    ("Blip2", "", BLIP2, lambda: _make_photo_prompt(4)),
    ("Blip", "", BLIP, _make_caption),
    ("Kosmos2", "", KOSMOS, _make_kosmos),
    ("Git", "GitForCausalLM", GIT, _make_caption),
]
# Models with an encoder of the photo alone: the photo and what was written so far.
WRITERS: list[tuple[str, str, dict[str, Any], Make, str, str]] = [
    (
        "Pix2Struct",
        "Pix2StructForConditionalGeneration",
        PIX2STRUCT,
        _make_pix2struct,
        "flattened_patches",
        "",
    ),
    (
        "VisionEncoderDecoder",
        "VisionEncoderDecoderModel",
        VIT_TO_GPT,
        _make_written,
        "pixel_values",
        "ViT and GPT-2",
    ),
    (
        "VisionEncoderDecoder",
        "VisionEncoderDecoderModel",
        TROCR,
        _make_written,
        "pixel_values",
        "TrOCR",
    ),
    (
        "VisionEncoderDecoder",
        "VisionEncoderDecoderModel",
        DONUT,
        _make_written,
        "pixel_values",
        "Donut",
    ),
]


CASES: list[SurveyCase] = [
    of_transformers(model or f"{family}{GENERATION}", family, TASK, sizes, make, of=of)
    for family, model, sizes, make in FAMILIES
    for of in ("input_ids", "pixel_values")
] + [
    of_transformers(model, family, "image to text", sizes, make, of=of, variant=variant)
    for family, model, sizes, make, of, variant in WRITERS
]
