"""Models of transformers that classify photos."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.survey.case import (
    TEXT,
    VISION,
    WIDTH,
    SurveyCase,
    make_photos,
    of_transformers,
    random_numbers,
)

SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "window_size": 4,
    "num_labels": 3,
}
HIERA = {
    "image_size": [32, 32],
    "patch_size": [3, 3],
    "patch_stride": [2, 2],
    "patch_padding": [1, 1],
    "embed_dim": 8,
    "depths": [1, 2],
    "num_heads": [1, 2],
    "mlp_ratio": 2.0,
    "num_query_pool": 1,
    "query_stride": [2, 2],
    "masked_unit_size": [4, 4],
    "masked_unit_attention": [True, False],
    "num_labels": 3,
}
PVT = {
    "image_size": 32,
    "num_encoder_blocks": 2,
    "depths": [2, 2],
    "sequence_reduction_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [4, 2],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "num_labels": 3,
}
PVT_V2 = {
    "image_size": 32,
    "depths": [1, 1, 1, 1],
    "sr_ratios": [4, 2, 1, 1],
    "hidden_sizes": [8, 8, 16, 16],
    "patch_sizes": [7, 3, 3, 3],
    "strides": [4, 2, 2, 2],
    "num_attention_heads": [1, 1, 2, 2],
    "mlp_ratios": [2, 2, 2, 2],
    "num_labels": 3,
}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 2],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
    "num_labels": 3,
}
CVT = {
    "embed_dim": [8, 8, 16],
    "num_heads": [1, 1, 2],
    "depth": [1, 2, 3],
    "mlp_ratio": [2.0, 2.0, 2.0],
    "num_labels": 3,
}
LEVIT = {
    "image_size": 64,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 3, 4],
    "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
    "mlp_ratio": [2, 2, 2],
    "attention_ratio": [2, 2, 2],
    "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]],
    "num_labels": 3,
}
MOBILEVIT = {
    "image_size": 64,
    "patch_size": 2,
    "hidden_sizes": [16, 16, 24],
    "neck_hidden_sizes": [8, 8, 8, 8, 16, 16, 24],
    "num_attention_heads": 2,
    "mlp_ratio": 2.0,
    "output_stride": 32,
    "aspp_out_channels": 16,
    "num_labels": 3,
}
MOBILEVIT_V2 = {"image_size": 64, "width_multiplier": 0.25, "num_labels": 3, "expand_ratio": 1.0}
PERCEIVER = {
    "d_latents": 12,
    "num_latents": 5,
    "num_blocks": 1,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "image_size": 32,
    "num_labels": 3,
}
IMAGE_GPT = {
    "vocab_size": 20,
    "n_positions": 64,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "num_labels": 3,
}
SWIFTFORMER = {
    "image_size": 64,
    "depths": [1, 1, 1, 1],
    "embed_dims": [8, 8, 16, 16],
    "mlp_ratio": 2,
    "num_labels": 3,
}
CONVNEXT = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 3}
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "num_labels": 3,
}
FOCALNET = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 1],
    "hidden_sizes": [8, 16],
    "focal_levels": [2, 2],
    "focal_windows": [3, 3],
    "num_labels": 3,
}
POOLFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 8, 16, 16],
    "mlp_ratio": 2.0,
    "num_labels": 3,
}
TOWERS = {"text_config": TEXT, "vision_config": VISION, "num_labels": 3}
NAFLEX = {**VISION, "num_patches": 16, "image_size": None}

# Sizes of each family, and the size of its photos.
CLASSIFIERS: dict[str, tuple[dict[str, Any], int]] = {
    "Beit": (VISION, 32),
    "CLIP": (TOWERS, 32),
    "ConvNext": (CONVNEXT, 32),
    "Cvt": (CVT, 64),
    "Data2VecVision": (VISION, 32),
    "DeiT": (VISION, 32),
    "Dinov2": (VISION, 32),
    "Dinov2WithRegisters": ({**VISION, "num_register_tokens": 2}, 32),
    "DonutSwin": (SWIN, 32),
    "FocalNet": (FOCALNET, 32),
    "Hiera": (HIERA, 32),
    "IJepa": (VISION, 32),
    "Levit": (LEVIT, 64),
    "MetaClip2": (TOWERS, 32),
    "MobileViT": (MOBILEVIT, 64),
    "MobileViTV2": (MOBILEVIT_V2, 64),
    "PoolFormer": (POOLFORMER, 64),
    "Pvt": (PVT, 32),
    "PvtV2": (PVT_V2, 64),
    "ResNet": (RESNET, 32),
    "Segformer": (SEGFORMER, 32),
    "Siglip": (TOWERS, 32),
    "SwiftFormer": (SWIFTFORMER, 64),
    "Swin": (SWIN, 32),
    "Swinv2": (SWIN, 32),
    "ViT": (VISION, 32),
    "ViTMSN": (VISION, 32),
}


def _make_naflex() -> dict[str, Any]:
    """Two photos as patches, with the sides of each: 4 by 4 and 2 by 6 and padding."""
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    return {
        "pixel_values": random_numbers(2, 16, 8 * 8 * 3) * mask[..., None],
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[4, 4], [2, 6]]),
    }


def _case(
    model: str, family: str, sizes: dict[str, Any], size: int = 32, **facts: Any
) -> SurveyCase:
    inputs = facts.pop("inputs", partial(make_photos, size))
    return of_transformers(model, family, "image classification", sizes, inputs, **facts)


CASES = [
    *(
        _case(f"{family}ForImageClassification", family, sizes, size)
        for family, (sizes, size) in CLASSIFIERS.items()
    ),
    _case("DeiTForImageClassificationWithTeacher", "DeiT", VISION),
    _case("LevitForImageClassificationWithTeacher", "Levit", LEVIT, 64),
    _case(
        "SwinForImageClassification",
        "Swin",
        {**SWIN, "image_size": 36},
        36,
        variant="padded windows",
    ),
    _case(
        "ImageGPTForImageClassification",
        "ImageGPT",
        IMAGE_GPT,
        inputs=lambda: {"input_ids": torch.arange(32).reshape(2, 16) % 19},
    ),
    _case(
        "Siglip2ForImageClassification",
        "Siglip2",
        {"text_config": TEXT, "vision_config": NAFLEX, "num_labels": 3},
        inputs=_make_naflex,
    ),
    _case(
        "PerceiverForImageClassificationLearned",
        "Perceiver",
        PERCEIVER,
        inputs=lambda: {"inputs": random_numbers(2, 3, 32, 32)},
    ),
    _case(
        "DINOv3ViTModel",
        "DINOv3ViT",
        {**VISION, "num_register_tokens": 2},
        output=lambda returned: returned.pooler_output,
    ),
    _case("ViTModel", "ViT", VISION, output=lambda returned: returned.last_hidden_state[:, 0]),
]
