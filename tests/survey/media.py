"""Video and audio: classifiers, and speech to text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.survey.case import (
    BOS,
    SPECIAL,
    WIDTH,
    WORDS,
    SurveyCase,
    of_transformers,
    random_numbers,
)
from tests.survey.sequences import BART
from whence import targets

VIDEO = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 8,
    "num_frames": 4,
    "tubelet_size": 2,
    "num_labels": 3,
}
VJEPA = {
    **VIDEO,
    "crop_size": 16,
    "frames_per_clip": 4,
    "mlp_ratio": 2.0,
    "pred_hidden_size": 12,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 1,
    "num_pooler_layers": 1,
}
SPEECH = {
    **SPECIAL,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 12,
    "conv_dim": [8, 8, 8],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 12,
    "num_labels": 3,
    "tdnn_dim": [8, 8],
    "tdnn_kernel": [3, 1],
    "tdnn_dilation": [1, 1],
    "xvector_output_dim": 8,
    "num_buckets": 8,
    "max_bucket_distance": 16,
    "max_position_embeddings": 64,
    "position_buckets": 8,
}
W2V_BERT = {**SPEECH, "feature_projection_input_dim": 10, "conv_depthwise_kernel_size": 3}
CONFORMER = {**SPEECH, "conv_depthwise_kernel_size": 3, "position_embeddings_type": "rotary"}
SEW = {**SPEECH, "squeeze_factor": 2}
AST = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "patch_size": 4,
    "frequency_stride": 4,
    "time_stride": 4,
    "max_length": 24,
    "num_mel_bins": 12,
    "num_labels": 3,
}
WHISPER = {
    **BART,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 16,
    "classifier_proj_size": 12,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
SPEECH_TO_TEXT = {
    **WHISPER,
    "input_feat_per_channel": 8,
    "input_channels": 1,
    "num_conv_layers": 2,
    "conv_kernel_sizes": [3, 3],
    "conv_channels": 16,
}
MOONSHINE = {
    **SPECIAL,
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
    "decoder_start_token_id": BOS,
    "max_position_embeddings": 64,
}
SPEECH_T5 = {
    **SPEECH,
    "vocab_size": WORDS,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "decoder_start_token_id": BOS,
}
WAVES = ("Data2VecAudio", "Hubert", "UniSpeech", "UniSpeechSat", "Wav2Vec2", "WavLM")


def _make_video(frames: int = 4) -> dict[str, Any]:
    return {"pixel_values": random_numbers(2, frames, 3, 16, 16)}


def _make_wave() -> dict[str, Any]:
    """Two sounds of 400 samples, the second one padded."""
    mask = torch.ones(2, 400, dtype=torch.long)
    mask[1, 300:] = 0
    return {"input_values": random_numbers(2, 400) * mask, "attention_mask": mask}


def _make_decoded(**inputs: Any) -> dict[str, Any]:
    return {**inputs, "decoder_input_ids": torch.tensor([[BOS, 9, 12], [BOS, 20, 31]])}


def _make_whisper() -> dict[str, Any]:
    return _make_decoded(input_features=random_numbers(2, 8, 24))


def _case(
    model: str, family: str, task: str, sizes: dict[str, Any], inputs: Any, **facts: Any
) -> SurveyCase:
    return of_transformers(model, family, task, sizes, inputs, **facts)


_classify = partial(_case, task="audio classification", inputs=_make_wave)
_recognise = partial(
    _case, task="speech recognition", inputs=_make_wave, target=targets.token(position=4)
)
_transcribe = partial(_case, task="speech to text")
_watch = partial(_case, task="video classification", inputs=_make_video)

CASES = [
    _watch("VideoMAEForVideoClassification", "VideoMAE", sizes=VIDEO),
    _watch("VivitForVideoClassification", "Vivit", sizes={**VIDEO, "tubelet_size": [2, 8, 8]}),
    _watch("TimesformerForVideoClassification", "Timesformer", sizes=VIDEO),
    _watch(
        "TimesformerForVideoClassification",
        "Timesformer",
        sizes={**VIDEO, "attention_type": "joint_space_time"},
        variant="joint",
    ),
    _watch(
        "VJEPA2ForVideoClassification",
        "VJEPA2",
        sizes=VJEPA,
        inputs=lambda: {"pixel_values_videos": random_numbers(2, 4, 3, 16, 16)},
    ),
    *(_classify(f"{family}ForSequenceClassification", family, sizes=SPEECH) for family in WAVES),
    *(_recognise(f"{family}ForCTC", family, sizes=SPEECH) for family in WAVES),
    _classify("SEWForSequenceClassification", "SEW", sizes=SEW),
    _classify("SEWDForSequenceClassification", "SEWD", sizes=SEW),
    _classify("Wav2Vec2ConformerForSequenceClassification", "Wav2Vec2Conformer", sizes=CONFORMER),
    _classify(
        "Wav2Vec2BertForSequenceClassification",
        "Wav2Vec2Bert",
        sizes=W2V_BERT,
        inputs=lambda: {"input_features": random_numbers(2, 20, 10)},
    ),
    _classify("Wav2Vec2ForXVector", "Wav2Vec2", sizes=SPEECH),
    _recognise("Wav2Vec2ForAudioFrameClassification", "Wav2Vec2", sizes=SPEECH),
    _classify(
        "ASTForAudioClassification",
        "AST",
        sizes=AST,
        config="ASTConfig",
        inputs=lambda: {"input_values": random_numbers(2, 24, 12)},
    ),
    _classify(
        "WhisperForAudioClassification",
        "Whisper",
        sizes=WHISPER,
        inputs=lambda: {"input_features": random_numbers(2, 8, 24)},
    ),
    _transcribe(
        "WhisperForConditionalGeneration",
        "Whisper",
        sizes=WHISPER,
        inputs=_make_whisper,
        of="input_features",
    ),
    _transcribe(
        "WhisperForConditionalGeneration",
        "Whisper",
        sizes=WHISPER,
        inputs=_make_whisper,
        of="decoder_input_ids",
    ),
    _transcribe(
        "Speech2TextForConditionalGeneration",
        "Speech2Text",
        sizes=SPEECH_TO_TEXT,
        inputs=lambda: _make_decoded(input_features=random_numbers(2, 24, 8)),
        of="input_features",
    ),
    _transcribe(
        "MoonshineForConditionalGeneration",
        "Moonshine",
        sizes=MOONSHINE,
        inputs=lambda: _make_decoded(input_values=random_numbers(2, 3000)),
        of="input_values",
    ),
    _transcribe(
        "SpeechT5ForSpeechToText",
        "SpeechT5",
        sizes=SPEECH_T5,
        inputs=lambda: _make_decoded(input_values=random_numbers(2, 400)),
        of="input_values",
    ),
]
