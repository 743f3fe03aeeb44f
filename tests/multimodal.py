"""The golden results of the GAE authors' own code, and its models in transformers' classes."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "golden" / "multimodal"
TAGS = ("top", "low")
VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours_nonorm": {"normalize_self_attention": False},
    "ours_noself10": {"apply_self_in_rule_10": False},
    "ours_nonorm_noself10": {"normalize_self_attention": False, "apply_self_in_rule_10": False},
}
"""The authors' names of variants, and the options that give them."""
LRP_VARIANTS = {
    name.replace("ours", "ours_lrp"): {**options, "contribution": "relevance"}
    for name, options in VARIANTS.items()
}


def mark_variants(variants: Iterable[str]) -> list[Any]:
    """Parameters of a test of which all but the first run with the slow tests."""
    first, *others = variants
    return [first, *(pytest.param(one, marks=pytest.mark.slow) for one in others)]


@cache
def read_multimodal(name: str) -> MappingProxyType[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return MappingProxyType(dict(file))


def compute_error(ours: Tensor, theirs: np.ndarray | Tensor) -> float:
    """Largest difference, in terms of the largest value; the difference itself where all are 0."""
    expected = torch.as_tensor(theirs)
    assert ours.shape == expected.shape
    return float((ours - expected).abs().max() / (expected.abs().max() or 1))


def read_sizes(name: str) -> dict[str, Any]:
    sizes: dict[str, Any] = json.loads(str(read_multimodal(name)["meta"]))
    return sizes


@cache
def load_model(name: str) -> nn.Module:
    """One of the models, in float64, in transformers' class."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    sizes = read_sizes(name)
    build = {
        "CLIP": _build_clip,
        "DETR": _build_detr,
        "LXMERT": _build_lxmert,
        "VisualBERT": _build_visualbert,
    }
    model = build[sizes["model"]](transformers, sizes)
    weights = {
        key.removeprefix("weights/"): torch.from_numpy(value)
        for key, value in read_multimodal(name).items()
        if key.startswith("weights/")
    }
    head = {key: weights.pop(key) for key in list(weights) if key.startswith("head.")}
    if head:
        model.cls = nn.Identity()
    model.double().eval().load_state_dict(weights, strict=True)
    if head:
        model.cls = _build_head(head)
    return model


def _build_head(weights: dict[str, Tensor]) -> nn.Module:
    """The head of the authors' VisualBERT."""
    first, last = weights["head.0.dense.weight"], weights["head.1.weight"]
    layers = nn.Sequential(
        nn.Linear(first.shape[1], first.shape[0]),
        nn.GELU(),
        nn.LayerNorm(first.shape[0], eps=1e-12),
        nn.Linear(last.shape[1], last.shape[0]),
    )
    names = {"head.0.dense": "0", "head.0.LayerNorm": "2", "head.1": "3"}
    state = {
        f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value
        for key, value in weights.items()
    }
    layers.double().load_state_dict(state, strict=True)
    return layers.eval()


def _build_clip(transformers: Any, sizes: dict[str, Any]) -> nn.Module:
    config = transformers.CLIPConfig(
        vision_config={
            "image_size": sizes["image_size"],
            "patch_size": sizes["patch_size"],
            "hidden_size": sizes["vision_width"],
            "num_hidden_layers": sizes["vision_layers"],
            "num_attention_heads": sizes["vision_heads"],
            "intermediate_size": 4 * sizes["vision_width"],
            "hidden_act": "quick_gelu",
        },
        text_config={
            "hidden_size": sizes["text_width"],
            "num_hidden_layers": sizes["text_layers"],
            "num_attention_heads": sizes["text_heads"],
            "intermediate_size": 4 * sizes["text_width"],
            "max_position_embeddings": sizes["context_length"],
            "vocab_size": sizes["vocab_size"],
            "eos_token_id": sizes["vocab_size"] - 1,
            "bos_token_id": sizes["vocab_size"] - 2,
            "pad_token_id": 0,
            "hidden_act": "quick_gelu",
        },
        projection_dim=sizes["embed_dim"],
        attn_implementation="eager",
    )
    return transformers.CLIPModel(config)


def _build_detr(transformers: Any, sizes: dict[str, Any]) -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=sizes["stem"],
        hidden_sizes=sizes["stages"],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        d_model=sizes["hidden"],
        encoder_layers=sizes["enc"],
        decoder_layers=sizes["dec"],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        encoder_ffn_dim=sizes["ffn"],
        decoder_ffn_dim=sizes["ffn"],
        num_queries=sizes["queries"],
        num_labels=sizes["labels"],
        activation_function="relu",
        attn_implementation="eager",
    )
    return transformers.DetrForObjectDetection(config)


def _build_lxmert(transformers: Any, sizes: dict[str, Any]) -> nn.Module:
    config = transformers.LxmertConfig(
        vocab_size=sizes["vocab"],
        hidden_size=sizes["hidden"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["ffn"],
        l_layers=sizes["l_layers"],
        r_layers=sizes["r_layers"],
        x_layers=sizes["x_layers"],
        num_qa_labels=sizes["labels"],
        max_position_embeddings=sizes["max_pos"],
        visual_feat_dim=sizes["feat"],
        visual_pos_dim=4,
        attn_implementation="eager",
    )
    return transformers.LxmertForQuestionAnswering(config)


def _build_visualbert(transformers: Any, sizes: dict[str, Any]) -> nn.Module:
    config = transformers.VisualBertConfig(
        vocab_size=sizes["vocab"],
        hidden_size=sizes["hidden"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["ffn"],
        max_position_embeddings=sizes["max_pos"],
        visual_embedding_dim=sizes["feat"],
        num_labels=sizes["labels"],
        attn_implementation="eager",
    )
    return transformers.VisualBertForQuestionAnswering(config)


def read_sample(name: str, i: int) -> dict[str, Tensor]:
    """The inputs of one sample of LXMERT or VisualBERT."""
    data = read_multimodal(name)
    names = ("input_ids", "attention_mask", "token_type_ids", "visual_feats", "visual_pos")
    keys = (*names, "visual_embeds")
    inputs = {key: torch.from_numpy(data[f"{i}/{key}"]) for key in keys if f"{i}/{key}" in data}
    if "visual_embeds" in inputs:
        boxes = inputs["visual_embeds"].shape[:2]
        inputs["visual_token_type_ids"] = torch.zeros(boxes, dtype=torch.long)
        inputs["visual_attention_mask"] = torch.ones(boxes)
    return inputs
