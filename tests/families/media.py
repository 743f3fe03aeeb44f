"""Tiny random models of videos and sounds, with inputs."""

import torch

from tests.families.models import build_transformers

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": 3,
}
CONVOLUTIONS = {
    "conv_dim": (8, 8),
    "conv_kernel": (5, 3),
    "conv_stride": (4, 2),
    "conv_bias": True,
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
}
WHISPER = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_mel_bins": 6,
    "max_source_positions": 10,
    "vocab_size": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "classifier_proj_size": 8,
    "num_labels": 3,
}


def draw_inputs(name: str, *shape: int) -> dict[str, torch.Tensor]:
    """Random inputs of a name."""
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator).double()}


def build_video(family: str):
    """A VideoMAE, whose units are two frames deep, a ViViT, or a TimeSformer.

    A "Timesformer, divided" attends over the frames of each patch, then over the patches of each
    frame; the other one over all at once.
    """
    sizes = {"num_frames": 4, "image_size": 16}
    own = {
        "VideoMAE": {"patch_size": 8, "tubelet_size": 2},
        "Vivit": {"tubelet_size": [1, 8, 8]},
        "Timesformer": {"patch_size": 8, "attention_type": "joint_space_time"},
        "Timesformer, divided": {"patch_size": 8},
    }[family]
    family = family.partition(",")[0]
    model = build_transformers(
        f"{family}ForVideoClassification", f"{family}Config", **SMALL, **sizes, **own
    )
    return model, draw_inputs("pixel_values", 2, 4, 3, 16, 16)


def build_ast(**sizes: int):
    """An AST with spectrograms of 12 steps and 8 bins, in cells of 4 by 4."""
    own = {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 12}
    own |= {"num_mel_bins": 8, **sizes}
    model = build_transformers("ASTForAudioClassification", "ASTConfig", **SMALL, **own)
    return model, draw_inputs("input_values", 2, own["max_length"], own["num_mel_bins"])


def build_waveform(family: str, norm: str = "layer"):
    """A Wav2Vec2, HuBERT or WavLM."""
    model = build_transformers(
        f"{family}ForSequenceClassification",
        f"{family}Config",
        **SMALL,
        **CONVOLUTIONS,
        feat_extract_norm=norm,
        do_stable_layer_norm=False,
    )
    return model, draw_inputs("input_values", 2, 85)


def build_whisper():
    """The encoder of a Whisper with a classifier; two steps are one unit."""
    model = build_transformers("WhisperForAudioClassification", "WhisperConfig", **WHISPER)
    return model, draw_inputs("input_features", 2, 6, 20)
