"""Language models: the next token's logit is read at the last token, itself part of the input."""

import pytest

from tests.families.formulas import Plain
from tests.families.models import (
    HEADS,
    TEXT,
    WIDTH,
    build_transformers,
    check_scores,
    copy_eager,
    make_ids,
)
from whence import Explainer

pytestmark = pytest.mark.xfail(strict=False, reason="the structure is not proven yet")

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
GPTJ = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_inner": 24, "rotary_dim": 4}

FAMILIES = {
    "GPTNeoX": ("GPTNeoX", {**TEXT, "use_parallel_residual": True}),
    "GPTNeoX, one after the other": ("GPTNeoX", {**TEXT, "use_parallel_residual": False}),
    "GPTJ": ("GPTJ", {**GPTJ, "vocab_size": 40, "n_positions": 32}),
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
    "GPT2": ("GPT2", {**GPTJ, "vocab_size": 40, "n_positions": 32}),
    "OPT": ("OPT", {**TEXT, "ffn_dim": 24, "word_embed_proj_dim": WIDTH}),
    "Olmo2": ("Olmo2", GQA),
    "DeepseekV3": ("DeepseekV3", {**TEXT, **MLA, **EXPERTS}),
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def read_next_token(returned):
    return returned.logits[:, -1]


def build(family: str):
    name, sizes = FAMILIES[family]
    sizes = {k: v for k, v in sizes.items() if not (name == "GPT2" and k == "rotary_dim")}
    return build_transformers(
        f"{name}ForCausalLM" if name != "GPT2" else "GPT2LMHeadModel",
        f"{name}Config",
        **sizes,
        **SPECIAL,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_next_token(family):
    model, ids = build(family), make_ids()
    eager = copy_eager(model)

    def run(sample: int, target: int) -> Plain:
        embeddings = eager.get_input_embeddings()(ids[sample : sample + 1]).detach()
        embeddings.requires_grad_()
        output = eager(inputs_embeds=embeddings, output_attentions=True, output_hidden_states=True)
        maps, last = list(output.attentions), ids.shape[1] - 1
        return Plain(
            logit=output.logits[0, -1, target],
            maps=maps,
            hidden=list(output.hidden_states[: len(maps)]),
            inputs=embeddings,
            read={last: 1.0},
            units=list(range(last + 1)),
        )

    plains = [lambda target, sample=sample: run(sample, target) for sample in range(len(ids))]
    explainer = Explainer(model, output=read_next_token)
    check_scores(explainer, {"input_ids": ids}, plains, target=[3, 7])
