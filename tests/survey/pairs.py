"""Models of two inputs: photos, sounds or boxes beside texts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.survey.case import (
    BOS,
    EOS,
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
from tests.survey.photos import NAFLEX, _make_naflex

CAPTION = {**TEXT, "max_position_embeddings": 16, "projection_dim": 8}
PHOTO = {**VISION, "projection_dim": 8}
TOWERS = {"text_config": CAPTION, "vision_config": PHOTO, "projection_dim": 8}
BERT_TOWER = {**TOWERS, "text_config": TEXT}
BLIP = {
    "text_config": {**TEXT, "encoder_hidden_size": WIDTH, "projection_dim": 8},
    "vision_config": PHOTO,
    "projection_dim": 8,
    "image_text_hidden_size": 8,
}
GROUPVIT = {
    "text_config": CAPTION,
    "vision_config": {
        **VISION,
        "depths": [1, 1],
        "num_group_tokens": [4, 0],
        "num_output_groups": [4, 0],
    },
    "projection_dim": 8,
    "projection_intermediate_dim": 16,
}
GROUPVIT["vision_config"] |= {"depths": [1, 1, 1], "num_group_tokens": [4, 2, 0]}
GROUPVIT["vision_config"] |= {"num_output_groups": [4, 2, 0]}
ALIGN = {
    "text_config": TEXT,
    "vision_config": {
        "width_coefficient": 0.25,
        "depth_coefficient": 0.25,
        "hidden_dim": 64,
        "image_size": 64,
        "in_channels": [32, 16],
        "out_channels": [16, 24],
        "kernel_sizes": [3, 3],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
        "depthwise_padding": [],
    },
    "projection_dim": 8,
}
WIDE = {"hidden_size": 64}  # its heads are 64 wide
BRIDGETOWER = {
    "text_config": {**TEXT, **WIDE, "model_type": "bridgetower_text_model"},
    "vision_config": {**VISION, **WIDE, "model_type": "bridgetower_vision_model"},
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "contrastive_hidden_size": 8,
}
VILT = {**VISION, **TEXT, "max_image_length": -1, "num_images": 1}
LXMERT = {
    **SPECIAL,
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "l_layers": 2,
    "r_layers": 1,
    "x_layers": 2,
    "visual_feat_dim": 6,
    "num_qa_labels": 4,
}
VISUALBERT = {**TEXT, "visual_embedding_dim": 6}
CLIPSEG = {
    "text_config": CAPTION,
    "vision_config": {**PHOTO, "num_hidden_layers": 4},
    "projection_dim": 8,
    "extract_layers": [1, 2],
    "reduce_dim": 8,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}
CLAP = {
    "text_config": TEXT,
    "audio_config": {
        "spec_size": 64,
        "num_mel_bins": 16,
        "window_size": 4,
        "patch_size": 2,
        "patch_stride": [2, 2],
        "patch_embeds_hidden_size": 8,
        "hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [1, 2],
        "enable_fusion": False,
        "projection_dim": 8,
        "num_hidden_layers": 2,
    },
    "projection_dim": 8,
}
XCLIP = {
    "text_config": CAPTION,
    "vision_config": {
        **VISION,
        "num_frames": 4,
        "mit_hidden_size": WIDTH,
        "mit_intermediate_size": 24,
        "mit_num_attention_heads": 2,
        "mit_num_hidden_layers": 1,
    },
    "projection_dim": 8,
    "prompt_layers": 1,
    "prompt_num_attention_heads": 2,
}
XCLIP |= {"projection_dim": WIDTH}
FLAVA = {
    "text_config": TEXT,
    "image_config": VISION,
    "multimodal_config": {**TEXT, "num_hidden_layers": 1},
    "projection_dim": 8,
    "hidden_size": WIDTH,
}


def make_captions(texts: int = 3) -> dict[str, Any]:
    """Make short texts that end with their own token, the last one padded."""
    ids = make_ids(texts, 6)
    ids[:, 0], ids[:, -1] = BOS, EOS
    ids[-1, -2:] = torch.tensor([EOS, SPECIAL["pad_token_id"]])
    return {"input_ids": ids, "attention_mask": (ids != SPECIAL["pad_token_id"]).long()}


def _make_pair(size: int = 32, texts: int = 3) -> dict[str, Any]:
    return {**make_captions(texts), **make_photos(size)}


def _make_regions() -> dict[str, Any]:
    return {
        **make_captions(2),
        "visual_feats": random_numbers(2, 5, 6),
        "visual_pos": random_numbers(2, 5, 4),
    }


def _make_visual() -> dict[str, Any]:
    return {
        **make_captions(2),
        "visual_embeds": random_numbers(2, 4, 6),
        "visual_attention_mask": torch.ones(2, 4, dtype=torch.long),
        "visual_token_type_ids": torch.zeros(2, 4, dtype=torch.long),
    }


def _make_clips() -> dict[str, Any]:
    return {**make_captions(), "pixel_values": random_numbers(2, 4, 3, 32, 32)}


def _make_sounds() -> dict[str, Any]:
    return {**make_captions(), "input_features": random_numbers(2, 1, 32, 16)}


def _make_asked() -> dict[str, Any]:
    return {**_make_pair(texts=2), "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long)}


def _case(
    model: str,
    family: str,
    sizes: dict[str, Any],
    of: str,
    inputs: Any = _make_pair,
    task: str = "image and text similarity",
    **facts: Any,
) -> SurveyCase:
    return of_transformers(model, family, task, sizes, inputs, of=of, **facts)


_ask = partial(_case, task="visual question answering")


def _both(model: str, family: str, sizes: dict[str, Any], **facts: Any) -> list[SurveyCase]:
    first = facts.pop("first", "pixel_values")
    return [_case(model, family, sizes, of, **facts) for of in (first, "input_ids")]


CASES = [
    *_both("CLIPModel", "CLIP", TOWERS),
    *_both("SiglipModel", "Siglip", TOWERS),
    *_both(
        "Siglip2Model",
        "Siglip2",
        {"text_config": CAPTION, "vision_config": NAFLEX},
        inputs=lambda: {**_make_naflex(), "input_ids": make_captions()["input_ids"]},
    ),
    *_both("AlignModel", "Align", ALIGN, inputs=partial(_make_pair, 64)),
    *_both("AltCLIPModel", "AltCLIP", {**TOWERS, "text_config": {**TEXT, "project_dim": WIDTH}}),
    *_both("ChineseCLIPModel", "ChineseCLIP", BERT_TOWER),
    *_both("MetaClip2Model", "MetaClip2", TOWERS),
    *_both("GroupViTModel", "GroupViT", GROUPVIT),
    *_both("CLIPSegModel", "CLIPSeg", CLIPSEG),
    *_both("XCLIPModel", "XCLIP", XCLIP, inputs=_make_clips, task="video and text similarity"),
    *_both(
        "ClapModel",
        "Clap",
        CLAP,
        inputs=_make_sounds,
        first="input_features",
        task="audio and text similarity",
    ),
    *_both("BlipModel", "Blip", BLIP),
    *_both(
        "BlipForImageTextRetrieval",
        "Blip",
        BLIP,
        inputs=partial(_make_pair, texts=2),
        task="image-text matching",
        target=lambda outputs, _: outputs.itm_score[:, 1],
    ),
    *_both(
        "BridgeTowerForImageAndTextRetrieval",
        "BridgeTower",
        BRIDGETOWER,
        inputs=_make_asked,
        task="image-text matching",
    ),
    *_both(
        "CLIPSegForImageSegmentation",
        "CLIPSeg",
        CLIPSEG,
        inputs=partial(_make_pair, texts=2),
        task="segmentation by text",
        target=lambda outputs, _: outputs.logits[:, 3, 4],
    ),
    *_both(
        "ViltForQuestionAnswering",
        "Vilt",
        VILT,
        inputs=_make_asked,
        task="visual question answering",
    ),
    _ask(
        "LxmertForQuestionAnswering",
        "Lxmert",
        LXMERT,
        "input_ids",
        _make_regions,
        target=lambda outputs, _: outputs.question_answering_score[:, 1],
    ),
    _ask(
        "LxmertForQuestionAnswering",
        "Lxmert",
        LXMERT,
        "visual_feats",
        _make_regions,
        target=lambda outputs, _: outputs.question_answering_score[:, 1],
    ),
    _ask("VisualBertForQuestionAnswering", "VisualBert", VISUALBERT, "input_ids", _make_visual),
    _ask("VisualBertForQuestionAnswering", "VisualBert", VISUALBERT, "visual_embeds", _make_visual),
]
