"""Language models: the next token's logit is read at the last token, itself part of the input."""

from functools import partial

import pytest
import torch

from tests.families.formulas import Plain
from tests.families.models import (
    HEADS,
    TEXT,
    WIDTH,
    build_transformers,
    check_scores,
    copy_eager,
    make_ids,
    replace_embeddings,
)
from whence import Explainer

GQA = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MLA = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": HEADS,
}
GPT = {
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": HEADS,
    "n_inner": 24,
    "vocab_size": 40,
    "n_positions": 32,
}

FAMILIES = {
    "GPTNeoX": ("GPTNeoX", {**TEXT, "use_parallel_residual": True}),
    "GPTNeoX, one after the other": ("GPTNeoX", {**TEXT, "use_parallel_residual": False}),
    "GPTJ": ("GPTJ", {**GPT, "rotary_dim": 4}),
    "Phi": ("Phi", TEXT),
    "Falcon": ("Falcon", {**TEXT, "ffn_hidden_size": 24, "multi_query": True}),
    "Falcon, several key heads": (
        "Falcon",
        {**TEXT, "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "Cohere": ("Cohere", {**GQA, "logit_scale": 0.5}),
    "Llama": ("Llama", GQA),
    "Mistral": ("Mistral", {**GQA, "sliding_window": 4}),
    "Qwen2": ("Qwen2", GQA),
    "Qwen3": ("Qwen3", {**GQA, "head_dim": 4}),
    "Gemma2": ("Gemma2", {**GQA, "head_dim": 4, "query_pre_attn_scalar": 4}),
    "GPT2": ("GPT2", GPT),
    "OPT": ("OPT", {**TEXT, "ffn_dim": 24, "word_embed_proj_dim": WIDTH}),
    "Olmo2": ("Olmo2", GQA),
    "Bloom": ("Bloom", {"vocab_size": 40, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "GPTBigCode": ("GPTBigCode", GPT),
    "StableLm": ("StableLm", {**GQA, "use_parallel_residual": True}),
    "Persimmon": ("Persimmon", TEXT),
    "Starcoder2": ("Starcoder2", GQA),
    "Granite": ("Granite", {**GQA, "residual_multiplier": 0.5, "embedding_multiplier": 2.0}),
    "Cohere2": ("Cohere2", {**GQA, "sliding_window": 4}),
    "Gemma3": ("Gemma3", {**GQA, "head_dim": 4, "query_pre_attn_scalar": 4}),
    "Glm4": ("Glm4", {**GQA, "head_dim": 4}),
    "Mixtral": ("Mixtral", {**GQA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen2Moe": ("Qwen2Moe", {**GQA, "num_experts": 4, "num_experts_per_tok": 2}),
    "GptOss": (
        "GptOss",
        {**GQA, "head_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "DeepseekV3": ("DeepseekV3", {**TEXT, **MLA, **EXPERTS}),
}
# Bloom's activation is a function of its own.
REFUSED = {"Bloom": "GeLUFunction"}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def read_next_token(returned):
    return returned.logits[:, -1]


def build(family: str, task: str = "ForCausalLM"):
    name, sizes = FAMILIES[family]
    if name == "GPT2" and task == "ForCausalLM":
        task = "LMHeadModel"
    config = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    return build_transformers(f"{name}{task}", config, **sizes, **SPECIAL)


def run(eager, ids, target: int) -> Plain:
    """Run a model on one sample; the logit is read at its last token."""
    with replace_embeddings(eager) as leaves:
        output = eager(ids, output_attentions=True, output_hidden_states=True)
    logits = output.logits if output.logits.dim() == 2 else output.logits[:, -1]
    maps, last = list(output.attentions), ids.shape[1] - 1
    return Plain(
        logit=logits[0, target],
        maps=maps,
        hidden=list(output.hidden_states[: len(maps)]),
        inputs=leaves[0],
        read={last: 1.0},
        units=list(range(last + 1)),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_next_token(family):
    model, ids = build(family), make_ids()
    eager = copy_eager(model)
    plains = [partial(run, eager, one) for one in ids.split(1)]
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    refused = {"tiba": REFUSED[family]} if family in REFUSED else {}
    check_scores(explainer, {"input_ids": ids}, plains, target=[3, 7], refused=refused)


@pytest.mark.parametrize("family", ["GPTNeoX", "GPTJ", "Phi", "Falcon", "Llama", "GPT2"])
def test_classification_with_padding(family):
    """The last token before the padding is read: another one in each text."""
    model, ids = build(family, "ForSequenceClassification"), make_ids()
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    eager = copy_eager(model)
    plains = [partial(run, eager, ids[:1]), partial(run, eager, ids[1:, :5])]
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    check_scores(Explainer(model), inputs, plains, target=[0, 1])


def test_experts_in_one_product():
    """The experts of transformers' default, whose products come in groups, in float32."""
    name, sizes = FAMILIES["Mixtral"]
    model = build_transformers(f"{name}ForCausalLM", f"{name}Config", **sizes, **SPECIAL).float()
    eager, ids = copy_eager(model), make_ids()
    model.set_experts_implementation("grouped_mm")
    plains = [partial(run, eager, one) for one in ids.split(1)]
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    check_scores(
        explainer,
        {"input_ids": ids},
        plains,
        target=[3, 7],
        refused={"tiba": "has no rule"},
        tolerance=1e-3,
    )
