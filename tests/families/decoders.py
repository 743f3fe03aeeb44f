"""Causal language models: one small random configuration for each family."""

from typing import Any

from tests.families.models import HEADS, TEXT, WIDTH, WORDS, build_transformers

GQA = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}
HEADED = {**GQA, "head_dim": 4}
SOFT_CAPPED = {**HEADED, "query_pre_attn_scalar": 4}
LOCAL_AND_GLOBAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
GROUPED = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": HEADS,
}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    **TEXT,
    **LATENT,
    **GROUPED,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
GPT = {
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": HEADS,
    "n_inner": 24,
    "vocab_size": WORDS,
    "n_positions": 32,
}
BLOOM = {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}
GPT_NEO = {
    **TEXT,
    "num_layers": 2,
    "num_heads": HEADS,
    "window_size": 4,
    "attention_types": [[["global", "local"], 1]],
}
MPT = {
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_layers": 2,
    "expansion_ratio": 2,
    "max_seq_len": 32,
    "vocab_size": WORDS,
}
LLAMA4 = {
    **HEADED,
    **LOCAL_EXPERTS,
    "num_hidden_layers": 2,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 24,
    "attention_chunk_size": 4,
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [1, 0],
    "layer_types": ["chunked_attention", "full_attention"],
}
JAMBA = {
    **GQA,
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
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("GPT2", GPT),
    "GPTNeo": ("GPTNeo", GPT_NEO),
    "GPTNeoX": ("GPTNeoX", {**TEXT, "use_parallel_residual": True}),
    "GPTNeoX, one after the other": ("GPTNeoX", {**TEXT, "use_parallel_residual": False}),
    "GPTJ": ("GPTJ", {**GPT, "rotary_dim": 4}),
    "GPTBigCode": ("GPTBigCode", GPT),
    "OPT": ("OPT", {**TEXT, "ffn_dim": 24, "word_embed_proj_dim": WIDTH}),
    "Bloom": ("Bloom", BLOOM),
    "MPT": ("Mpt", MPT),
    "Falcon": ("Falcon", {**TEXT, "ffn_hidden_size": 24, "multi_query": True}),
    "Falcon, several key heads": (
        "Falcon",
        {**TEXT, "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "Falcon, alibi": ("Falcon", {**TEXT, "ffn_hidden_size": 24, "alibi": True}),
    "Llama": ("Llama", GQA),
    "Mistral": ("Mistral", {**GQA, "sliding_window": 4}),
    "Qwen2": ("Qwen2", GQA),
    "Qwen3": ("Qwen3", HEADED),
    "Gemma": ("Gemma", HEADED),
    "Gemma2": ("Gemma2", {**SOFT_CAPPED, **LOCAL_AND_GLOBAL}),
    "Gemma3": ("Gemma3", {**SOFT_CAPPED, **LOCAL_AND_GLOBAL}),
    "Phi": ("Phi", TEXT),
    "Phi3": ("Phi3", GQA),
    "OLMo2": ("Olmo2", GQA),
    "SmolLM3": ("SmolLM3", {**GQA, "no_rope_layers": [1, 0]}),
    "StableLM": ("StableLm", {**GQA, "use_parallel_residual": True}),
    "StableLM, one after the other": ("StableLm", {**GQA, "qk_layernorm": True}),
    "Cohere": ("Cohere", {**GQA, "logit_scale": 0.5}),
    "Cohere2": ("Cohere2", {**GQA, **LOCAL_AND_GLOBAL}),
    "Persimmon": ("Persimmon", TEXT),
    "Starcoder2": ("Starcoder2", GQA),
    "Granite": ("Granite", {**GQA, "residual_multiplier": 0.5, "embedding_multiplier": 2.0}),
    "GLM4": ("Glm4", HEADED),
    "Mixtral": ("Mixtral", {**GQA, **LOCAL_EXPERTS}),
    "Qwen2Moe": ("Qwen2Moe", {**GQA, **ROUTED, "shared_expert_intermediate_size": 8}),
    "Qwen3Moe": ("Qwen3Moe", {**HEADED, **ROUTED}),
    "GPT-OSS": ("GptOss", {**HEADED, **LOCAL_EXPERTS, **LOCAL_AND_GLOBAL}),
    "Llama4": ("Llama4", LLAMA4),
    "DeepSeek-V2": ("DeepseekV2", {**DEEPSEEK, "topk_method": "group_limited_greedy"}),
    "DeepSeek-V3": ("DeepseekV3", DEEPSEEK),
    "Jamba": ("Jamba", JAMBA),
}
# Norms that the output of an attention passes before it is added to the residual stream.
BRANCH_NORMS = {
    "Gemma2": "post_attention_layernorm",
    "Gemma3": "post_attention_layernorm",
    "OLMo2": "post_attention_layernorm",
    "GLM4": "post_self_attn_layernorm",
}
# Without scaled_dot_product_attention in transformers; Falcon's differs with alibi, by a percent.
EAGER_ONLY = ("GPTNeo", "GPTJ", "Bloom", "MPT", "Falcon, alibi", "Gemma2", "GPT-OSS")

# What is particular about each, for the table in the documentation.
NOTES = {
    "GPT2": "learned positions",
    "GPTNeo": "local attention",
    "GPTNeoX": "rotary positions, parallel residual",
    "GPTNeoX, one after the other": "attention and MLP one after the other",
    "GPTJ": "parallel residual",
    "GPTBigCode": "one key head",
    "OPT": "learned positions by mask",
    "Bloom": "alibi, heads folded into the batch",
    "MPT": "alibi",
    "Falcon": "parallel residual, one key head",
    "Falcon, several key heads": "parallel residual, grouped key heads",
    "Falcon, alibi": "alibi",
    "Llama": "grouped key heads, SwiGLU",
    "Mistral": "sliding window",
    "Qwen2": "biases in attention",
    "Qwen3": "norms of queries and keys",
    "Gemma": "scaled embeddings",
    "Gemma2": "soft-capping, sandwich norms, sliding window",
    "Gemma3": "norms of queries and keys, sandwich norms, sliding window",
    "Phi": "parallel residual, partial rotary positions",
    "Phi3": "fused projections",
    "OLMo2": "norms after attention and MLP",
    "SmolLM3": "layers without positions",
    "StableLM": "parallel residual",
    "StableLM, one after the other": "norms of each head",
    "Cohere": "parallel residual, scaled logits",
    "Cohere2": "parallel residual, sliding window",
    "Persimmon": "norms of queries and keys, squared ReLU",
    "Starcoder2": "grouped key heads",
    "Granite": "scaled residuals, embeddings and logits",
    "GLM4": "sandwich norms",
    "Mixtral": "experts",
    "Qwen2Moe": "experts, one shared",
    "Qwen3Moe": "experts",
    "GPT-OSS": "attention sinks, experts, sliding window",
    "Llama4": "chunked attention, layers without positions, experts",
    "DeepSeek-V2": "latent attention, experts in groups",
    "DeepSeek-V3": "latent attention, experts in groups",
    "Jamba": "Mamba layers, experts",
}


def make_table() -> str:
    """The table of families for the documentation, in Markdown."""
    lines = [
        "| family | particular | `attn_implementation` | methods of attention | at the input |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family in FAMILIES:
        attention = "eager" if family in EAGER_ONLY else "sdpa, eager"
        of_attention = "refused" if family == "Jamba" else "equal"
        lines.append(f"| {family} | {NOTES[family]} | {attention} | {of_attention} | equal |")
    return "\n".join(lines)


def build(family: str, task: str = "ForCausalLM", attention: str | None = None) -> Any:
    """Build a model of a family in float64; its experts are computed one by one."""
    name, sizes = FAMILIES[family]
    attention = "eager" if family in EAGER_ONLY else attention
    if name == "GPT2" and task == "ForCausalLM":
        task = "LMHeadModel"
    config = f"{name}TextConfig" if name in ("Gemma3", "Llama4") else f"{name}Config"
    return build_transformers(f"{name}{task}", config, attention, **sizes, **SPECIAL)
