"""Detection, segmentation, depth and other heads with an output for each place."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.survey.case import (
    SPECIAL,
    TEXT,
    VISION,
    WIDTH,
    SurveyCase,
    make_ids,
    make_photos,
    of_transformers,
    random_numbers,
)
from tests.survey.photos import CONVNEXT, MOBILEVIT, SEGFORMER, SWIN
from whence import targets

RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
LAST, LAST_THREE = {"out_features": ["stage4"]}, {"out_features": ["stage2", "stage3", "stage4"]}
DECODER = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_labels": 3,
}
BACKBONE = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
DETR = {**DECODER, **BACKBONE, "backbone_config": {**RESNET, **LAST}, "num_queries": 5}
DEFORMABLE = {
    **DETR,
    "d_model": 32,
    "backbone_config": {**RESNET, **LAST_THREE},
    "num_feature_levels": 3,
    "encoder_n_points": 2,
    "decoder_n_points": 2,
    "two_stage": False,
}
RT_DETR = {
    **DECODER,
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 16],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        **LAST_THREE,
    },
    "encoder_hidden_dim": WIDTH,
    "encoder_in_channels": [16, 16, 16],
    "decoder_in_channels": [16, 16, 16],
    "feat_strides": [8, 16, 32],
    "encoder_layers": 1,
    "num_queries": 5,
    "decoder_n_points": 2,
    "hidden_expansion": 0.5,
    "num_denoising": 0,
}
D_FINE = {**RT_DETR, "decoder_n_points": [2, 2, 2], "max_num_bins": 4, "layer_scale": 1}
SEGMENTED = {**VISION, "num_hidden_layers": 4}
BEIT = {
    **SEGMENTED,
    "image_size": 64,
    "out_indices": [1, 2, 3, 4],
    "use_relative_position_bias": True,
}
DPT = {
    **SEGMENTED,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 8, 16, 16],
    "fusion_hidden_size": 8,
    "is_hybrid": False,
    "readout_type": "project",
    "reassemble_factors": [4, 2, 1, 0.5],
}
DINO = {
    **VISION,
    "num_hidden_layers": 4,
    "model_type": "dinov2",
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "reshape_hidden_states": False,
    "apply_layernorm": True,
}
DEPTH_ANYTHING = {
    "backbone_config": DINO,
    "patch_size": 8,
    "reassemble_hidden_size": WIDTH,
    "neck_hidden_sizes": [8, 8, 8, 8],
    "fusion_hidden_size": 8,
    "head_hidden_size": 8,
    "depth_estimation_type": "metric",
    "max_depth": 10,
}
FOUR_STAGES = {
    **SWIN,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "image_size": 64,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
UPERNET = {"hidden_size": 8, "pool_scales": [1, 2], "auxiliary_channels": 8, "num_labels": 3}
MASKED = {
    "backbone_config": {**FOUR_STAGES, "model_type": "swin"},
    "fpn_feature_size": 32,
    "mask_feature_size": 32,
    "decoder_config": {**DECODER, "model_type": "detr", "num_queries": 5, **BACKBONE},
    "num_queries": 5,
    "num_labels": 3,
}
MASK2FORMER = {
    "backbone_config": {**FOUR_STAGES, "model_type": "swin"},
    "feature_size": 32,
    "mask_feature_size": 32,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 24,
    "dim_feedforward": 24,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_attention_heads": 2,
    "num_queries": 5,
    "num_labels": 3,
}
SAM = {
    "vision_config": {
        **VISION,
        "image_size": 64,
        "output_channels": 8,
        "window_size": 4,
        "global_attn_indexes": [1],
        "mlp_dim": 24,
        "num_pos_feats": 4,
    },
    "prompt_encoder_config": {
        "hidden_size": 8,
        "image_size": 64,
        "patch_size": 8,
        "mask_input_channels": 4,
    },
    "mask_decoder_config": {
        "hidden_size": 8,
        "mlp_dim": 16,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 8,
    },
}
SAM["prompt_encoder_config"] |= {"image_embedding_size": 8}
CLIP_TEXT = {**TEXT, "max_position_embeddings": 16}
OWL = {"text_config": CLIP_TEXT, "vision_config": VISION, "projection_dim": WIDTH}
GROUNDING = {
    **DEFORMABLE,
    "text_config": {**TEXT, "model_type": "bert"},
    "num_queries": 5,
    "max_text_len": 16,
    "two_stage": True,
}
SWIN2SR = {
    "image_size": 16,
    "patch_size": 1,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "upscale": 2,
}
VIT_DET = {**VISION, "model_type": "vitdet", "pretrain_image_size": 32, "mlp_ratio": 2}
MATTE = {
    "backbone_config": {
        **VIT_DET,
        "image_size": 64,
        "patch_size": 16,
        "pretrain_image_size": 64,
        "num_channels": 4,
        "out_features": ["stage2"],
        "window_size": 2,
        "window_block_indices": [0],
        "use_relative_position_embeddings": True,
    },
    "hidden_size": WIDTH,
    "convstream_hidden_sizes": [4, 8, 8],
    "fusion_hidden_sizes": [8, 8, 8, 4],
}
EOMT = {**VISION, "num_queries": 5, "num_blocks": 1, "num_upscale_blocks": 1, "num_labels": 3}
POSE = {
    "backbone_config": {
        **VISION,
        "model_type": "vitpose_backbone",
        "image_size": [32, 32],
        "patch_size": [8, 8],
        "out_features": ["stage2"],
    },
    "num_labels": 4,
    "scale_factor": 2,
}
GLPN = {
    **SEGFORMER,
    "num_encoder_blocks": 4,
    "depths": [1, 1, 1, 1],
    "sr_ratios": [4, 2, 1, 1],
    "hidden_sizes": [8, 8, 8, 16],
    "patch_sizes": [7, 3, 3, 3],
    "strides": [4, 2, 2, 2],
    "num_attention_heads": [1, 1, 1, 2],
    "mlp_ratios": [2, 2, 2, 2],
    "decoder_hidden_size": 8,
}
DETECTION, SEGMENTATION, DEPTH = "object detection", "semantic segmentation", "depth estimation"
BOX, PIXEL = targets.box(), targets.pixel(1, 1)


def _read_depth(outputs: Any, _: Any) -> Tensor:
    depth: Tensor = outputs.predicted_depth.mean((1, 2))
    return depth


def _read_mask_class(outputs: Any, _: Any) -> Tensor:
    """The logit of class 1 for the third query."""
    logits: Tensor = outputs.class_queries_logits[:, 2, 1]
    return logits


def _read_mask(outputs: Any, _: Any) -> Tensor:
    masks: Tensor = outputs.pred_masks[:, 0, 0, 3, 4]
    return masks


def _make_prompted() -> dict[str, Any]:
    return {
        **make_photos(64),
        "input_points": torch.tensor([[[[20.0, 30.0]]]]).expand(2, 1, 1, 2),
    }


def _make_searched() -> dict[str, Any]:
    """Two photos, and two texts for each that are looked for."""
    ids = make_ids(4, 5)
    ids[:, 0], ids[:, -1] = SPECIAL["bos_token_id"], SPECIAL["eos_token_id"]
    return {**make_photos(32), "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _make_grounded() -> dict[str, Any]:
    ids = make_ids(2, 6)
    return {**make_photos(64), "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _case(
    model: str, family: str, task: str, sizes: dict[str, Any], target: Any, **facts: Any
) -> SurveyCase:
    inputs = facts.pop("inputs", None) or partial(make_photos, facts.pop("size", 64))
    return of_transformers(model, family, task, sizes, inputs, target=target, **facts)


_detect = partial(_case, task=DETECTION, target=BOX)
_segment = partial(_case, task=SEGMENTATION, target=PIXEL)
_estimate = partial(_case, task=DEPTH, target=_read_depth)
_mask = partial(_case, task="mask segmentation", target=_read_mask_class)

CASES = [
    _detect("DetrForObjectDetection", "Detr", sizes=DETR),
    _detect("ConditionalDetrForObjectDetection", "ConditionalDetr", sizes=DETR),
    _detect("DabDetrForObjectDetection", "DabDetr", sizes={**DETR, "hidden_size": WIDTH}),
    _detect("DeformableDetrForObjectDetection", "DeformableDetr", sizes=DEFORMABLE),
    _detect("RTDetrForObjectDetection", "RTDetr", sizes=RT_DETR),
    _detect("RTDetrV2ForObjectDetection", "RTDetrV2", sizes=RT_DETR),
    _detect("DFineForObjectDetection", "DFine", sizes=D_FINE),
    _detect("TableTransformerForObjectDetection", "TableTransformer", sizes=DETR),
    _detect(
        "YolosForObjectDetection",
        "Yolos",
        sizes={**VISION, "image_size": [32, 32], "num_detection_tokens": 4},
        size=32,
    ),
    _detect(
        "OwlViTForObjectDetection", "OwlViT", sizes=OWL, inputs=_make_searched, of="pixel_values"
    ),
    _detect(
        "Owlv2ForObjectDetection", "Owlv2", sizes=OWL, inputs=_make_searched, of="pixel_values"
    ),
    _detect(
        "GroundingDinoForObjectDetection",
        "GroundingDino",
        sizes=GROUNDING,
        inputs=_make_grounded,
        of="pixel_values",
    ),
    _segment("SegformerForSemanticSegmentation", "Segformer", sizes=SEGFORMER, size=32),
    _segment("BeitForSemanticSegmentation", "Beit", sizes=BEIT),
    _segment("Data2VecVisionForSemanticSegmentation", "Data2VecVision", sizes=BEIT),
    _segment("DPTForSemanticSegmentation", "DPT", sizes=DPT, size=32),
    _segment("MobileViTForSemanticSegmentation", "MobileViT", sizes=MOBILEVIT),
    _segment(
        "UperNetForSemanticSegmentation",
        "UperNet",
        sizes={**UPERNET, "backbone_config": {**FOUR_STAGES, "model_type": "swin"}},
        variant="Swin",
    ),
    _segment(
        "UperNetForSemanticSegmentation",
        "UperNet",
        sizes={
            **UPERNET,
            "backbone_config": {
                **CONVNEXT,
                "model_type": "convnext",
                "out_features": FOUR_STAGES["out_features"],
            },
            "auxiliary_in_channels": 16,
        },
        variant="ConvNeXt",
    ),
    _estimate("DPTForDepthEstimation", "DPT", sizes=DPT, size=32),
    _estimate("DepthAnythingForDepthEstimation", "DepthAnything", sizes=DEPTH_ANYTHING, size=32),
    _estimate("GLPNForDepthEstimation", "GLPN", sizes=GLPN),
    _mask("MaskFormerForInstanceSegmentation", "MaskFormer", sizes=MASKED),
    _mask("Mask2FormerForUniversalSegmentation", "Mask2Former", sizes=MASK2FORMER),
    _mask("EomtForUniversalSegmentation", "Eomt", sizes=EOMT, size=32),
    _case(
        "SamModel",
        "Sam",
        "prompted segmentation",
        SAM,
        _read_mask,
        inputs=_make_prompted,
        of="pixel_values",
    ),
    _case(
        "Swin2SRForImageSuperResolution",
        "Swin2SR",
        "super-resolution",
        SWIN2SR,
        lambda outputs, _: outputs.reconstruction[:, 0, 3, 4],
        size=16,
    ),
    _case(
        "VitMatteForImageMatting",
        "VitMatte",
        "matting",
        MATTE,
        lambda outputs, _: outputs.alphas[:, 0, 3, 4],
        inputs=lambda: {"pixel_values": random_numbers(2, 4, 64, 64)},
    ),
    _case(
        "VitPoseForPoseEstimation",
        "VitPose",
        "pose estimation",
        POSE,
        lambda outputs, _: outputs.heatmaps[:, 1, 3, 4],
        size=32,
    ),
]
