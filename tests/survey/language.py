"""Decoders: the next token, and classifiers of texts that are decoders."""

from __future__ import annotations

from typing import Any

from tests.survey.case import (
    EOS,
    SPECIAL,
    TEXT,
    WIDTH,
    WORDS,
    SurveyCase,
    make_text,
    of_transformers,
)

GROUPED = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}
HEADED = {**GROUPED, "head_dim": 4}
SOFT_CAPPED = {**HEADED, "query_pre_attn_scalar": 4}
MIXED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GROUPS_OF_EXPERTS = {
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 2,
}
DEEPSEEK = {**TEXT, **LATENT, **GROUPS_OF_EXPERTS}
GPT = {
    **SPECIAL,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": 24,
    "vocab_size": WORDS,
    "n_positions": 64,
    "num_labels": 3,
}
MPT = {
    **SPECIAL,
    "d_model": WIDTH,
    "n_heads": 2,
    "n_layers": 2,
    "expansion_ratio": 2,
    "max_seq_len": 64,
    "vocab_size": WORDS,
}
MAMBA = {**SPECIAL, "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2}
JAMBA = {
    **GROUPED,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "use_mamba_kernels": False,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
}
LLAMA4 = {
    **HEADED,
    **LOCAL_EXPERTS,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 24,
    "attention_chunk_size": 4,
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [1, 0],
    "layer_types": ["chunked_attention", "full_attention"],
}
XGLM = {**TEXT, "d_model": WIDTH, "num_layers": 2, "attention_heads": 2, "ffn_dim": 24}
DBRX = {
    **SPECIAL,
    "d_model": WIDTH,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "vocab_size": WORDS,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 16},
}
CTRL = {**SPECIAL, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "dff": 24, "vocab_size": WORDS}
NEXT = {
    **HEADED,
    **ROUTED,
    "shared_expert_intermediate_size": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

# Sizes of each family that predicts the next token.
FAMILIES: dict[str, dict[str, Any]] = {
    "Apertus": GROUPED,
    "Arcee": GROUPED,
    "BioGpt": TEXT,
    "BitNet": GROUPED,
    "Bloom": {**SPECIAL, "vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 2},
    "CTRL": CTRL,
    "CodeGen": {**GPT, "rotary_dim": 4, "n_head": 4},
    "Cohere": {**GROUPED, "logit_scale": 0.5},
    "Cohere2": {**GROUPED, **MIXED},
    "Dbrx": DBRX,
    "DeepseekV2": {**DEEPSEEK, "topk_method": "group_limited_greedy"},
    "DeepseekV3": DEEPSEEK,
    "DiffLlama": GROUPED,
    "Dots1": {**GROUPED, **GROUPS_OF_EXPERTS},
    "Ernie4_5": GROUPED,
    "Exaone4": {**GROUPED, **MIXED},
    "Falcon": {**TEXT, "ffn_hidden_size": 24, "multi_query": True},
    "GPT2": GPT,
    "GPTBigCode": GPT,
    "GPTJ": {**GPT, "rotary_dim": 4},
    "GPTNeo": {
        **TEXT,
        "num_layers": 2,
        "num_heads": 2,
        "window_size": 4,
        "attention_types": [[["global", "local"], 1]],
    },
    "GPTNeoX": TEXT,
    "GPTNeoXJapanese": {**TEXT, "intermediate_multiple_size": 2},
    "Gemma": HEADED,
    "Gemma2": {**SOFT_CAPPED, **MIXED},
    "Gemma3": {**SOFT_CAPPED, **MIXED},
    "Glm": HEADED,
    "Glm4": HEADED,
    "Glm4Moe": {**HEADED, **GROUPS_OF_EXPERTS},
    "GptOss": {**HEADED, **LOCAL_EXPERTS, **MIXED},
    "Granite": {**GROUPED, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "GraniteMoe": {**GROUPED, **LOCAL_EXPERTS},
    "Helium": HEADED,
    "HunYuanDenseV1": HEADED,
    "Jamba": JAMBA,
    "JetMoe": {**TEXT, **LOCAL_EXPERTS, "num_key_value_heads": 2, "kv_channels": 8},
    "Llama": GROUPED,
    "Llama4": LLAMA4,
    "Mamba": MAMBA,
    "Ministral": {**HEADED, **MIXED},
    "Mistral": {**GROUPED, "sliding_window": 4},
    "Mixtral": {**GROUPED, **LOCAL_EXPERTS},
    "ModernBertDecoder": {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2},
    "Mpt": MPT,
    "Nemotron": GROUPED,
    "OPT": {**TEXT, "ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "Olmo": GROUPED,
    "Olmo2": GROUPED,
    "Olmo3": {**GROUPED, **MIXED},
    "Olmoe": {**GROUPED, **ROUTED},
    "OpenAIGPT": GPT,
    "Persimmon": TEXT,
    "Phi": TEXT,
    "Phi3": GROUPED,
    "Phimoe": {**GROUPED, **LOCAL_EXPERTS},
    "Qwen2": GROUPED,
    "Qwen2Moe": {**GROUPED, **ROUTED, "shared_expert_intermediate_size": 8},
    "Qwen3": HEADED,
    "Qwen3Moe": {**HEADED, **ROUTED},
    "Qwen3Next": NEXT,
    "SeedOss": HEADED,
    "SmolLM3": {**GROUPED, "no_rope_layers": [1, 0]},
    "StableLm": {**GROUPED, "use_parallel_residual": True},
    "Starcoder2": GROUPED,
    "XGLM": XGLM,
}
CONFIGS = {"Gemma3": "Gemma3TextConfig", "Llama4": "Llama4TextConfig"}
MODELS = {"GPT2": "GPT2LMHeadModel", "CTRL": "CTRLLMHeadModel", "OpenAIGPT": "OpenAIGPTLMHeadModel"}
CLASSIFIERS = (
    "Bloom",
    "Falcon",
    "GPT2",
    "Gemma",
    "Llama",
    "Mistral",
    "OPT",
    "Phi3",
    "Qwen2",
    "Qwen3",
)


def _make_prompt() -> dict[str, Any]:
    """Two prompts without a last token of their own, the second one padded."""
    text = make_text()
    ids = text["input_ids"]
    ids[ids == EOS] = 9
    return text


CASES: list[SurveyCase] = [
    of_transformers(
        MODELS.get(family, f"{family}ForCausalLM"),
        family,
        "language model",
        sizes,
        _make_prompt,
        config=CONFIGS.get(family),
    )
    for family, sizes in FAMILIES.items()
] + [
    of_transformers(
        f"{family}ForSequenceClassification",
        family,
        "text classification",
        {**FAMILIES[family], "num_labels": 3},
        _make_prompt,
    )
    for family in CLASSIFIERS
]
