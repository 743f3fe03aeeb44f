"""Where memory is short, blocks are computed again: scores are the same, for two calls of each."""

import dataclasses
from collections import Counter

import pytest
import torch

from whence import Explainer, targets
from whence.rules.balanced import BALANCED

transformers = pytest.importorskip("transformers")

LAYERS = 4
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
}
IDS = torch.arange(24)[None].mul(7).add(3) % 50
TEXT = {"input_ids": IDS}
PHOTO = {"image_size": 32, "patch_size": 8}
METHODS = ("whence", "gae", "attnlrp", "tiba", "rollout", "input_x_gradient", "reslrp")


def make_llama():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.3)
    return transformers.LlamaForCausalLM(config)


def make_gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=LAYERS, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def make_mixtral():
    config = transformers.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, experts_implementation="eager"
    )
    return transformers.MixtralForCausalLM(config)


def make_t5():
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=LAYERS,
        num_heads=4,
        vocab_size=50,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def make_swin():
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinForImageClassification(config)


FAMILIES = {
    "llama": (make_llama, TEXT),
    "gpt2": (make_gpt2, TEXT),
    "mixtral": (make_mixtral, TEXT),
    "bert": (
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)),
        TEXT,
    ),
    "vit": (
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, **PHOTO)),
        None,
    ),
    "t5": (make_t5, {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}),
    "swin": (make_swin, None),
}


def make_case(family: str):
    make, inputs = FAMILIES[family]
    torch.manual_seed(0)
    model = make().eval().double()
    photo = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    asked = {"target": targets.token(-1, 3)} if hasattr(model, "lm_head") else {}
    return model, photo if inputs is None else inputs, asked


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_same(family, method):
    model, inputs, asked = make_case(family)
    explainer = Explainer(model)
    expected = explainer.explain(inputs, method=method, **asked)
    for memory in (6e-4, 1e-4, 1e-6):
        found = explainer.explain(inputs, method=method, memory=memory, **asked)
        scale = expected.scores.abs().max()
        assert torch.allclose(found.scores, expected.scores, rtol=1e-9, atol=1e-12 * scale)


def count_calls(monkeypatch, kind) -> Counter:
    forward, counts = kind.forward, Counter()

    def count(self, *args, **kwargs):
        counts[self.self_attn.layer_idx] += 1
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", count)
    return counts


@pytest.mark.parametrize("method", [name for name in METHODS if name != "whence"])
def test_each_block_is_called_twice(method, monkeypatch):
    model, inputs, asked = make_case("llama")
    counts = count_calls(monkeypatch, type(model.model.layers[0]))
    explainer = Explainer(model)
    explainer.explain(inputs, method=method, **asked)
    assert set(counts.values()) == {1}
    counts.clear()
    explainer.explain(inputs, method=method, memory=1e-4, **asked)
    assert set(counts.values()) == {2}


def test_the_last_blocks_that_fit_into_memory_are_not_called_again(monkeypatch):
    model, inputs, asked = make_case("llama")
    counts = count_calls(monkeypatch, type(model.model.layers[0]))
    Explainer(model).explain(inputs, method="attnlrp", memory=5e-4, **asked)
    assert [counts[layer] for layer in range(LAYERS)] == [2, 2, 1, 1]


@pytest.mark.parametrize("method", ["attnlrp", "whence"])
def test_blocks_keep_no_more_than_what_gradients_read(monkeypatch, method):
    """So that more of them fit where nothing but gradients is read; none is called for the rest."""
    model, inputs, asked = make_case("llama")
    counts = count_calls(monkeypatch, type(model.model.layers[0]))
    explainer = Explainer(model)
    expected = explainer.explain(inputs, method=method, **asked)
    for memory, called in ((6e-4, [1, 1, 1, 1]), (5e-4, [2, 2, 1, 1])):
        counts.clear()
        found = explainer.explain(inputs, method=method, memory=memory, **asked)
        assert [counts[layer] for layer in range(LAYERS)] == called
        torch.testing.assert_close(found.scores, expected.scores)
    counts.clear()
    explainer.explain(inputs, method="tiba", memory=6e-4, **asked)  # z⁺ reads all
    assert [counts[layer] for layer in range(LAYERS)] == [2, 2, 2, 1]


def test_rules_of_users_may_read_all_that_operations_keep():
    """Also where they say that they do not read linear maps."""

    def share(op, relevance):
        (x,) = op.inputs
        same = x.shape == op.output.shape
        return relevance * op.output / torch.where(x == 0, 1.0, x) if same else op.vjp(relevance)[0]

    def halve(op, relevance):
        parts = [torch.where(x == 0, torch.ones_like(x), x) for x in op.inputs]
        return tuple(op.sum_to_shape(relevance * op.output / x, x.shape) / 2 for x in parts)

    mine = dataclasses.replace(
        BALANCED,
        name="mine",
        is_gradient=False,
        supports_partial=False,
        attention_factors=None,
        rules={**BALANCED.rules, "pass": share, "product": halve, "quotient": halve},
    )
    model, inputs, asked = make_case("llama")
    explainer = Explainer(model)
    expected = explainer.explain(inputs, method="lrp", rules=mine, **asked)
    for memory in (1e-3, 8e-4, 6e-4, 1e-4):
        found = explainer.explain(inputs, method="lrp", rules=mine, memory=memory, **asked)
        torch.testing.assert_close(found.scores, expected.scores)


def test_tensors_without_memory_may_be_written_to():
    class Writing(torch.nn.Module):
        def __init__(self, mlp):
            super().__init__()
            self.mlp = mlp

        def forward(self, x):
            torch.empty(0).fill_(1)
            return self.mlp(x)

    model, inputs, asked = make_case("llama")
    expected = Explainer(model).explain(inputs, method="attnlrp", **asked)
    for layer in model.model.layers:
        layer.mlp = Writing(layer.mlp)
    found = Explainer(model).explain(inputs, method="attnlrp", memory=1e-6, **asked)
    torch.testing.assert_close(found.scores, expected.scores)
