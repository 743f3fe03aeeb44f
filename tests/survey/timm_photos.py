"""Models of timm and torchvision that classify photos."""

from __future__ import annotations

import dataclasses
import importlib
import operator
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from tests.survey.case import SurveyCase, random_numbers

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
FOUR = {"depths": (1, 1, 1, 1)}
PVT = {**FOUR, "embed_dims": (8, 8, 16, 16), "num_heads": (1, 1, 2, 2)}
SWIN = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 8,
    "depths": (2, 2),
    "num_heads": (1, 2),
}
MAXXVIT = {
    "img_size": 64,
    "cfg": "MaxxVitCfg",
    "depths": (1, 1),
    "embed_dim": (32, 32),
    "stem_width": 8,
}
CAFORMER = {
    **FOUR,
    "dims": (8, 16, 32, 64),
    "token_mixers": ["SepConv", "SepConv", "Attention", "Attention"],
    "norm_layers": ["LayerNorm2dNoBias"] * 2 + ["LayerNormNoBias"] * 2,
}
COAT = {
    "img_size": 64,
    "embed_dims": (32, 32, 32, 32),
    "serial_depths": (1, 1, 1, 1),
    "parallel_depth": 1,
}
CROSSVIT = {
    "img_size": 48,
    "img_scale": (1.0, 0.5),
    "patch_size": (12, 8),
    "embed_dim": (16, 24),
    "num_heads": (2, 2),
    "depth": ((1, 2, 0),),
    "mlp_ratio": (2, 2, 1),
}
GCVIT = {
    **FOUR,
    "img_size": 64,
    "embed_dim": 8,
    "num_heads": (1, 1, 2, 2),
    "window_size": (4, 4, 4, 2),
}
MIXER = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 16}
MVIT = {**FOUR, "img_size": (64, 64), "cfg": "MultiScaleVitCfg", "embed_dim": 8, "num_heads": 1}
NAFLEX = {"cfg": "NaFlexVitCfg", "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
NEST = {
    "img_size": 64,
    "embed_dims": (8, 16, 32),
    "num_heads": (1, 2, 2),
    "depths": (1, 1, 1),
}
SAM2 = {
    "embed_dim": 8,
    "num_heads": 1,
    "stages": (1, 1, 2, 1),
    "global_att_blocks": (3,),
    "window_spec": (8, 4, 4, 4),
}
VOLO = {
    "img_size": 64,
    "layers": (1, 1, 1, 1),
    "embed_dims": (8, 16, 16, 16),
    "num_heads": (1, 2, 2, 2),
    "stem_hidden_dim": 8,
}

# For each family: the model's name in timm, the size of its photos, and what makes it small.
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "BEiT": ("beit_base_patch16_224", 32, VIT),
    "BEiTv2": ("beitv2_base_patch16_224", 32, VIT),
    "CAFormer": ("metaformer.MetaFormer", 64, CAFORMER),
    "CaiT": ("cait_xxs24_224", 32, VIT),
    "CoAtNet": ("maxxvit.MaxxVit", 64, {**MAXXVIT, "block_type": ("C", "T")}),
    "CoaT": ("coat_tiny", 64, COAT),
    "ConViT": ("convit_tiny", 32, {**VIT, "local_up_to_layer": 1}),
    "ConvNeXt": ("convnext_atto", 64, {**FOUR, "dims": (8, 8, 16, 16)}),
    "CrossViT": ("crossvit_tiny_240", 48, CROSSVIT),
    "DaViT": (
        "davit_tiny",
        64,
        {**FOUR, "embed_dims": (16, 16, 32, 32), "num_heads": (1, 1, 2, 2), "window_size": 4},
    ),
    "DeiT": ("deit_tiny_patch16_224", 32, VIT),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", 32, VIT),
    "DeiT3": ("deit3_small_patch16_224", 32, VIT),
    "DINOv2": ("vit_small_patch14_dinov2", 32, VIT),
    "DINOv3": ("vit_small_patch16_dinov3", 32, VIT),
    "EdgeNeXt": ("edgenext_xx_small", 64, {**FOUR, "dims": (8, 16, 24, 32)}),
    "EfficientFormer": ("efficientformer_l1", 224, {**FOUR, "embed_dims": (8, 8, 16, 16)}),
    "EfficientFormerV2": (
        "efficientformerv2_s0",
        64,
        {"depths": (1, 1, 1, 2), "embed_dims": (8, 8, 16, 16), "num_vit": 1, "img_size": 64},
    ),
    "EfficientViT, MIT": ("efficientvit_b0", 64, {}),
    "EfficientViT, MSRA": ("efficientvit_m0", 64, {"img_size": 64}),
    "EVA": ("eva_giant_patch14_224", 32, VIT),
    "EVA02": ("eva02_tiny_patch14_224", 32, VIT),
    "FastViT": ("fastvit_sa12", 64, {"layers": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 32)}),
    "FlexiViT": ("flexivit_small", 32, VIT),
    "GC ViT": ("gcvit.GlobalContextVit", 64, GCVIT),
    "Hiera": (
        "hiera_tiny_224",
        64,
        {"img_size": (64, 64), "embed_dim": 8, "num_heads": 1, "stages": (1, 1, 1, 1)},
    ),
    "LeViT": (
        "levit_128s",
        64,
        {
            "img_size": 64,
            "embed_dim": (16, 24, 32),
            "key_dim": 8,
            "depth": (1, 1, 1),
            "num_heads": (2, 3, 4),
        },
    ),
    "MaxViT": ("maxxvit.MaxxVit", 64, {**MAXXVIT, "block_type": ("M", "M")}),
    "MLP-Mixer": ("mlp_mixer.MlpMixer", 32, MIXER),
    "MobileViT": ("mobilevit_xxs", 64, {}),
    "MobileViTV2": ("mobilevitv2_050", 64, {}),
    "MViTv2": ("mvitv2.MultiScaleVit", 64, MVIT),
    "NaFlexViT": ("naflexvit.NaFlexVit", 32, NAFLEX),
    "NesT": ("nest.Nest", 64, NEST),
    "NextViT": ("nextvit_small", 64, {"depths": (1, 1, 5, 1)}),
    "PiT": (
        "pit_ti_224",
        64,
        {
            "img_size": 64,
            "patch_size": 8,
            "stride": 8,
            "base_dims": (8, 8, 8),
            "depth": (1, 1, 1),
            "heads": (1, 2, 4),
        },
    ),
    "PoolFormer": ("metaformer.MetaFormer", 64, {**FOUR, "dims": (8, 8, 16, 16)}),
    "PVTv2": ("pvt_v2_b0", 64, PVT),
    "ResNet": ("resnet10t", 64, {"channels": (8, 8, 16, 16)}),
    "SAM": (
        "samvit_base_patch16_224",
        64,
        {**VIT, "img_size": 64, "window_size": 4, "global_attn_indexes": (1,), "neck_chans": 8},
    ),
    "SAM2 Hiera": ("sam2_hiera_tiny", 64, SAM2),
    "SigLIP": ("vit_base_patch16_siglip_gap_224", 32, VIT),
    "SigLIP, attention pooling": ("vit_base_patch16_siglip_224", 32, VIT),
    "Swin": ("swin_tiny_patch4_window7_224", 32, SWIN),
    "SwinV2": ("swinv2_tiny_window8_256", 32, SWIN),
    "SwinV2-CR": (
        "swinv2_cr_tiny_224",
        64,
        {**FOUR, "img_size": 64, "embed_dim": 16, "num_heads": (1, 1, 2, 2)},
    ),
    "TinyViT": (
        "tiny_vit_5m_224",
        64,
        {
            **FOUR,
            "embed_dims": (8, 16, 16, 32),
            "num_heads": (1, 2, 2, 2),
            "window_sizes": (4, 4, 4, 2),
        },
    ),
    "TNT": (
        "tnt_s_legacy_patch16_224",
        32,
        {"img_size": 32, "embed_dim": 16, "inner_dim": 8, "depth": 2, "num_heads_outer": 2},
    ),
    "Twins-PCPVT": (
        "twins_pcpvt_small",
        64,
        {**PVT, "img_size": 64, "mlp_ratios": (2, 2, 2, 2), "sr_ratios": (4, 2, 1, 1)},
    ),
    "Twins-SVT": (
        "twins_svt_small",
        64,
        {**PVT, "img_size": 64, "wss": (4, 4, 4, 2), "sr_ratios": (4, 2, 1, 1)},
    ),
    "Visformer": (
        "visformer_tiny",
        64,
        {"img_size": 64, "embed_dim": 32, "depth": (1, 1, 1), "num_heads": 2, "init_channels": 8},
    ),
    "ViT": ("vit_tiny_patch16_224", 32, VIT),
    "ViT, attention pooling": ("vit_tiny_patch16_224", 32, {**VIT, "global_pool": "map"}),
    "ViT, hybrid": ("vit_tiny_r_s16_p8_224", 64, {"img_size": 64, "depth": 2}),
    "ViT, relative positions": ("vit_relpos_small_patch16_224", 32, VIT),
    "ViTamin": ("vitamin_small_224", 64, {"img_size": 64, "depth": 2}),
    "VOLO": ("volo.VOLO", 64, VOLO),
    "XCiT": ("xcit_nano_12_p16_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 16}),
}


def _build_timm(name: str, sizes: dict[str, Any]) -> nn.Module:
    """Build a model by its name in timm, or by module and class where no name takes sizes."""
    import timm

    if "." not in name:
        model: nn.Module = timm.create_model(name, num_classes=3, **sizes)
        return model
    file, kind = name.split(".")
    module = importlib.import_module(f"timm.models.{file}")
    sizes = {key: _find_classes(module, value) for key, value in sizes.items()}
    if "cfg" in sizes:
        known = {field.name for field in dataclasses.fields(sizes["cfg"])}
        rest = {key: sizes[key] for key in sizes if key not in known and key != "cfg"}
        own = {key: sizes[key] for key in sizes if key in known}
        sizes = {"cfg": sizes["cfg"](**own), **rest}
    built: nn.Module = getattr(module, kind)(num_classes=3, **sizes)
    return built


def _find_classes(module: ModuleType, value: Any) -> Any:
    """Replace names of classes by the classes of a module."""
    if isinstance(value, list):
        return [_find_classes(module, one) for one in value]
    return getattr(module, value) if isinstance(value, str) and hasattr(module, value) else value


def _build_torchvision(name: str, sizes: dict[str, Any]) -> nn.Module:
    import torchvision

    find = operator.attrgetter(name)
    model: nn.Module = find(torchvision.models)(**sizes)
    return model


def _of_timm(family: str) -> SurveyCase:
    name, size, sizes = MODELS[family]
    root, _, variant = family.partition(", ")
    variant = variant or (root if "." in name else "")
    return SurveyCase(
        "timm",
        name,
        root,
        "image classification",
        partial(_build_timm, name, sizes),
        partial(random_numbers, 2, 3, size, size),
        variant=variant,
    )


def _of_torchvision(
    name: str, family: str, size: int, sizes: dict[str, Any], frames: tuple[int, ...] = ()
) -> SurveyCase:
    return SurveyCase(
        "torchvision",
        name,
        family,
        "video classification" if frames else "image classification",
        partial(_build_torchvision, name, sizes),
        partial(random_numbers, 2, 3, *frames, size, size),
    )


TORCHVISION_SWIN: dict[str, Any] = {
    "patch_size": [2, 2],
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "window_size": [4, 4],
    "num_classes": 3,
}
CASES = [
    *map(_of_timm, MODELS),
    _of_torchvision(
        "VisionTransformer",
        "ViT",
        32,
        {
            "image_size": 32,
            "patch_size": 8,
            "num_layers": 2,
            "num_heads": 2,
            "hidden_dim": 16,
            "mlp_dim": 24,
            "num_classes": 3,
        },
    ),
    _of_torchvision("SwinTransformer", "Swin", 32, TORCHVISION_SWIN),
    _of_torchvision(
        "MaxVit",
        "MaxViT",
        64,
        {
            "input_size": (64, 64),
            "stem_channels": 8,
            "partition_size": 4,
            "block_channels": [8, 16],
            "block_layers": [1, 1],
            "head_dim": 8,
            "stochastic_depth_prob": 0.0,
            "num_classes": 3,
        },
    ),
    _of_torchvision(
        "video.swin_transformer.SwinTransformer3d",
        "Swin3D",
        32,
        {
            "patch_size": [2, 4, 4],
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [1, 2],
            "window_size": [2, 4, 4],
            "num_classes": 3,
        },
        frames=(8,),
    ),
    _of_torchvision("resnet18", "ResNet", 64, {"num_classes": 3}),
]
