"""Encoder-decoders of texts: the next token of the decoder, and classifiers."""

from __future__ import annotations

from typing import Any

import torch

from tests.survey.case import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    TEXT,
    WIDTH,
    WORDS,
    SurveyCase,
    make_ids,
    make_text,
    of_transformers,
)

T5 = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "num_labels": 3,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
}
BART = {
    **SPECIAL,
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "num_labels": 3,
    "decoder_start_token_id": BOS,
}
SWITCH = {**T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
PROPHETNET = {
    **SPECIAL,
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_attention_heads": 2,
    "num_decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "ngram": 2,
    "num_buckets": 8,
}
T5GEMMA = {
    **TEXT,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
FSMT = {**BART, "src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["en", "de"]}

# Sizes of each family that writes a text from a text.
FAMILIES: dict[str, dict[str, Any]] = {
    "Bart": BART,
    "BigBirdPegasus": {**BART, "attention_type": "original_full"},
    "Blenderbot": BART,
    "BlenderbotSmall": BART,
    "FSMT": FSMT,
    "LED": {**BART, "attention_window": 4, "max_encoder_position_embeddings": 64},
    "LongT5": {**T5, "local_radius": 3, "encoder_attention_type": "local"},
    "M2M100": BART,
    "MBart": BART,
    "MT5": T5,
    "Marian": BART,
    "Mvp": BART,
    "NllbMoe": {**BART, "num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "PLBart": BART,
    "Pegasus": BART,
    "PegasusX": {**BART, "num_global_tokens": 2, "block_size": 4},
    "ProphetNet": PROPHETNET,
    "SwitchTransformers": SWITCH,
    "T5": T5,
    "T5Gemma": {"encoder": T5GEMMA, "decoder": T5GEMMA, "vocab_size": WORDS, **SPECIAL},
    "UMT5": T5,
}
MODELS = {"Marian": "MarianMTModel"}
CLASSIFIERS = ("Bart", "MBart", "MT5", "Mvp", "PLBart", "T5", "UMT5")
BERT_TO_BERT = {
    "encoder": {**TEXT, "model_type": "bert"},
    "decoder": {**TEXT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    **SPECIAL,
    "decoder_start_token_id": BOS,
}


def make_translation() -> dict[str, Any]:
    """Two texts, and the first four tokens of what the decoder writes."""
    decoder = make_ids(2, 4).flip(1)
    decoder[:, 0] = BOS
    return {**make_text(), "decoder_input_ids": decoder}


def _make_classified() -> dict[str, Any]:
    ids = make_text()["input_ids"]
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def _make_led() -> dict[str, Any]:
    ids = make_ids(2, 8)
    return {**make_translation(), "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _list_cases() -> list[SurveyCase]:
    found = [
        of_transformers(
            MODELS.get(family, f"{family}ForConditionalGeneration"),
            family,
            "text to text",
            sizes,
            _make_led if family == "LED" else make_translation,
            of="input_ids",
        )
        for family, sizes in FAMILIES.items()
    ]
    found += [
        of_transformers(
            f"{family}ForConditionalGeneration",
            family,
            "text to text",
            FAMILIES[family],
            make_translation,
            of="decoder_input_ids",
        )
        for family in ("Bart", "T5")
    ]
    found += [
        of_transformers(
            f"{family}ForSequenceClassification",
            family,
            "text classification",
            FAMILIES[family],
            _make_classified,
        )
        for family in CLASSIFIERS
    ]
    found.append(
        of_transformers(
            "EncoderDecoderModel",
            "EncoderDecoder",
            "text to text",
            BERT_TO_BERT,
            make_translation,
            of="input_ids",
        )
    )
    return found


CASES = _list_cases()
