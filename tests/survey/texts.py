"""Encoders of texts: classifiers, taggers, masked language models, answers, embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.survey.case import (
    EOS,
    LABELS,
    MASK,
    SPECIAL,
    TEXT,
    WIDTH,
    WORDS,
    Inputs,
    SurveyCase,
    make_ids,
    make_text,
    of_transformers,
    random_numbers,
)
from whence import targets

SMALL_EMBEDDINGS = {**TEXT, "embedding_size": 12}
DISTILBERT = {**TEXT, "dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
XLM = {**TEXT, "emb_dim": WIDTH, "n_layers": 2, "n_heads": 2, "n_langs": 1}
DEBERTA = {
    **TEXT,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": 8,
    "position_buckets": 4,
}
FUNNEL = {
    **SPECIAL,
    "vocab_size": WORDS,
    "num_labels": LABELS,
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
    "d_model": WIDTH,
    "n_head": 2,
    "d_head": 8,
    "d_inner": 24,
}
BIG_BIRD = {**TEXT, "block_size": 4, "num_random_blocks": 1, "attention_type": "block_sparse"}
LAYOUTLM_V3 = {
    **TEXT,
    "coordinate_size": 2,
    "shape_size": 4,
    "max_2d_position_embeddings": 128,
    "input_size": 32,
    "patch_size": 8,
}
MOBILEBERT = {
    **TEXT,
    "embedding_size": 12,
    "true_hidden_size": 12,
    "intra_bottleneck_size": 12,
    "num_feedforward_networks": 2,
    "use_bottleneck": True,
}
PERCEIVER = {
    **TEXT,
    "d_model": WIDTH,
    "d_latents": 12,
    "num_latents": 5,
    "num_blocks": 1,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
}
REFORMER = {
    **TEXT,
    "attn_layers": ["local", "lsh"],
    "attention_head_size": 8,
    "axial_pos_embds": False,
    "num_buckets": 2,
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 4,
    "feed_forward_size": 24,
}
CANINE = {**TEXT, "local_transformer_stride": 8, "downsampling_rate": 4, "num_hash_buckets": 64}
XLNET = {
    **SPECIAL,
    "vocab_size": WORDS,
    "num_labels": LABELS,
    "d_model": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "d_inner": 24,
}
LILT = {**TEXT, "hidden_size": 24, "channel_shrink_ratio": 2, "max_2d_position_embeddings": 128}
ROCBERT = {
    **TEXT,
    "pronunciation_vocab_size": WORDS,
    "shape_vocab_size": WORDS,
    "pronunciation_embed_dim": 8,
    "shape_embed_dim": 8,
}

# Sizes of the encoders that classify a text, each in its own way.
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "Albert": SMALL_EMBEDDINGS,
    "Bert": TEXT,
    "BigBird": BIG_BIRD,
    "Camembert": TEXT,
    "Canine": CANINE,
    "ConvBert": {**SMALL_EMBEDDINGS, "conv_kernel_size": 3, "head_ratio": 1},
    "Data2VecText": TEXT,
    "Deberta": DEBERTA,
    "DebertaV2": DEBERTA,
    "DistilBert": DISTILBERT,
    "Electra": SMALL_EMBEDDINGS,
    "Ernie": TEXT,
    "Esm": {**TEXT, "mask_token_id": MASK, "position_embedding_type": "rotary"},
    "EuroBert": TEXT,
    "FNet": TEXT,
    "Flaubert": XLM,
    "Funnel": FUNNEL,
    "Gte": TEXT,
    "IBert": TEXT,
    "JinaEmbeddingsV3": TEXT,
    "LayoutLM": {**TEXT, "max_2d_position_embeddings": 128},
    "LayoutLMv3": LAYOUTLM_V3,
    "Lilt": LILT,
    "Longformer": {**TEXT, "attention_window": 4},
    "Luke": {**TEXT, "entity_vocab_size": 8, "entity_emb_size": 8},
    "MPNet": TEXT,
    "MarkupLM": {**TEXT, "max_depth": 4, "xpath_unit_hidden_size": 4},
    "MegatronBert": TEXT,
    "MobileBert": MOBILEBERT,
    "ModernBert": {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2},
    "NomicBert": TEXT,
    "Nystromformer": {**TEXT, "num_landmarks": 4, "segment_means_seq_len": 8},
    "Perceiver": PERCEIVER,
    "Reformer": REFORMER,
    "RemBert": {**TEXT, "input_embedding_size": 12, "output_embedding_size": 12},
    "RoCBert": ROCBERT,
    "RoFormer": {**TEXT, "embedding_size": WIDTH},
    "Roberta": TEXT,
    "RobertaPreLayerNorm": TEXT,
    "SqueezeBert": {**TEXT, "embedding_size": WIDTH, "q_groups": 2, "k_groups": 2, "v_groups": 2},
    "XLM": XLM,
    "XLMRoberta": TEXT,
    "XLMRobertaXL": TEXT,
    "XLNet": XLNET,
    "Xmod": {**TEXT, "languages": ["en_XX"], "default_language": "en_XX"},
    "Yoso": TEXT,
}
# Those that are also asked for a masked token, for tags, or for an answer in a text.
MASKED = (
    "Albert",
    "Bert",
    "DebertaV2",
    "DistilBert",
    "Electra",
    "Esm",
    "Longformer",
    "ModernBert",
    "Perceiver",
    "Roberta",
    "XLMRoberta",
)
TAGGERS = ("Bert", "DebertaV2", "DistilBert", "LayoutLMv3", "ModernBert", "Roberta", "XLMRoberta")
ANSWERS = ("Bert", "BigBird", "DebertaV2", "DistilBert", "Longformer", "Roberta")


def _make_boxes() -> dict[str, Any]:
    """Two texts with a place on the page for each token."""
    ids = make_text()["input_ids"]
    boxes = torch.arange(2 * 8 * 2).reshape(2, 8, 2) % 50
    mask = (ids != 0).long()
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "bbox": torch.cat([boxes, boxes + 10], -1) * mask[..., None],
    }


def _make_document() -> dict[str, Any]:
    return {**_make_boxes(), "pixel_values": random_numbers(2, 3, 32, 32)}


def _make_pronunciations() -> dict[str, Any]:
    text = make_text()
    ids = text["input_ids"]
    return {**text, "input_shape_ids": ids, "input_pronunciation_ids": ids}


# Inputs that are not only a text of eight tokens.
INPUTS = {
    "BigBird": partial(make_text, 48),
    "Canine": partial(make_text, 32),
    "LayoutLM": _make_boxes,
    "LayoutLMv3": _make_document,
    "Lilt": _make_boxes,
    "Longformer": partial(make_text, 16),
    "Nystromformer": lambda: {"input_ids": make_ids(2, 8)},
    "Reformer": lambda: {"input_ids": make_ids(2, 8)},
    "RoCBert": _make_pronunciations,
    "FNet": lambda: {"input_ids": make_text()["input_ids"]},
}


def _case(family: str, suffix: str, task: str, **facts: Any) -> SurveyCase:
    inputs = facts.pop("inputs", INPUTS.get(family, make_text))
    sizes = {**CLASSIFIERS[family], "num_labels": facts.pop("labels", LABELS)}
    return of_transformers(f"{family}{suffix}", family, task, sizes, inputs, **facts)


def _make_question() -> dict[str, Any]:
    """A question and a text in which three separators stand."""
    ids = make_ids(2, 16)
    ids[:, [4, 5, -1]] = EOS
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def read_answer(outputs: Any, _: Any) -> torch.Tensor:
    """The logit of an answer that starts at the third token."""
    logits: torch.Tensor = outputs.start_logits[:, 2]
    return logits


def _make_perceiver() -> Inputs:
    text = make_text()
    return {"inputs": text["input_ids"], "attention_mask": text["attention_mask"]}


def _make_choices() -> dict[str, Any]:
    ids = make_ids(6).reshape(2, 3, 8)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _make_other() -> dict[str, Any]:
    ids = make_ids(2, 6).flip(0)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _list_cases() -> list[SurveyCase]:
    own = {"Perceiver": {"inputs": _make_perceiver}}
    found = [
        _case(family, "ForSequenceClassification", "text classification", **own.get(family, {}))
        for family in CLASSIFIERS
    ]
    found.append(
        of_transformers(
            "BigBirdForSequenceClassification",
            "BigBird",
            "text classification",
            {**BIG_BIRD, "attention_type": "original_full"},
            make_text,
            variant="original_full",
        )
    )
    found += [
        _case(
            family,
            "ForMaskedLM",
            "masked language model",
            target=targets.token(position=2),
            **own.get(family, {}),
        )
        for family in MASKED
    ]
    found += [
        _case(family, "ForTokenClassification", "token classification", target=targets.token(2))
        for family in TAGGERS
    ]
    found += [
        _case(
            family,
            "ForQuestionAnswering",
            "question answering",
            target=read_answer,
            labels=2,
            inputs=partial(make_text, 48) if family == "BigBird" else _make_question,
        )
        for family in ANSWERS
    ]
    found += [
        _case(family, "ForMultipleChoice", "multiple choice", inputs=_make_choices)
        for family in ("Bert", "Roberta")
    ]
    found += [
        _case(family, "Model", "text embedding", target=targets.similarity(_make_other()))
        for family in ("Bert", "DistilBert", "MPNet", "ModernBert", "XLMRoberta")
    ]
    return found


CASES = _list_cases()
