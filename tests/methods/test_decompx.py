import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2ForSequenceClassification, LlamaConfig, LlamaForCausalLM

from tests.methods.test_attention_norm import build_tiny
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError

Vectors = list[Tensor]  # of one token: what it has of each token of the input


def share(bias: Tensor, vectors: Vectors) -> Vectors:
    weights = [abs(float(bias @ vector)) for vector in vectors]
    return [v + w / sum(weights) * bias for v, w in zip(vectors, weights, strict=True)]


def pass_norm(norm, vectors: Vectors, whole: Tensor) -> Vectors:
    spread = (whole.var(unbiased=False) + norm.eps).sqrt()
    return share(norm.bias, [norm.weight * (v - v.mean()) / spread for v in vectors])


def pass_linear(linear, vectors: Vectors) -> Vectors:
    return share(linear.bias, [linear.weight @ v for v in vectors])


def pass_activation(function, vectors: Vectors, whole: Tensor) -> Vectors:
    return [function(whole) / whole * v for v in vectors]


def pass_attention(attention, maps: Tensor, parts: list[Vectors], first: bool) -> list[Vectors]:
    """The attention of a block with its skip connection, and all biases of both."""
    inner, dense = attention.self, attention.output.dense
    heads, tokens, _ = maps.shape
    size, found = dense.in_features // heads, []
    for i in range(tokens):
        row: Vectors = [part.clone() for part in parts[i]]
        for j in range(tokens):
            for k in range(tokens):
                value = inner.value.weight @ parts[k][j]
                if first and k == j:
                    value = value + inner.value.bias
                for h in range(heads):
                    some = slice(h * size, (h + 1) * size)
                    row[j] = row[j] + maps[h, i, k] * (dense.weight[:, some] @ value[some])
        bias = dense.bias if first else dense.bias + dense.weight @ inner.value.bias
        found.append(share(bias, row))
    return found


@torch.no_grad()
def decompose(model, ids: Tensor) -> Tensor:
    """(tokens, classes), what each token of one text gives to the logits of a BERT."""
    output = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
    whole, tokens = output.hidden_states[0][0], ids.shape[1]
    zero = torch.zeros_like(whole[0])
    parts = [[whole[i] if i == j else zero for j in range(tokens)] for i in range(tokens)]
    for number, layer in enumerate(model.bert.encoder.layer):
        parts = pass_attention(layer.attention, output.attentions[number][0], parts, number == 0)
        for i in range(tokens):
            row = pass_norm(layer.attention.output.LayerNorm, parts[i], sum(parts[i]))
            inner = pass_linear(layer.intermediate.dense, row)
            inner = pass_activation(layer.intermediate.intermediate_act_fn, inner, sum(inner))
            inner = pass_linear(layer.output.dense, inner)
            row = [a + b for a, b in zip(row, inner, strict=True)]
            parts[i] = pass_norm(layer.output.LayerNorm, row, sum(row))
    pooled = pass_linear(model.bert.pooler.dense, parts[0])
    pooled = pass_activation(torch.tanh, pooled, sum(pooled))
    return torch.stack(pass_linear(model.classifier, pooled))


def test_vectors_carried_in_a_loop():
    model = build_tiny("Bert")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # biases, too
    ids = make_texts()["input_ids"][:1, :5]
    expected = decompose(model, ids)
    result = Explainer(model).explain({"input_ids": ids}, classes=[0, 1, 2], method="decompx")
    assert torch.allclose(result.scores[0], expected.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["Bert-sdpa", "DistilBert-eager", "timm-vit-average-fused"])
def test_scores_sum_to_the_logit(name):
    model, inputs = build_model(CASES[name]), CASES[name].inputs()
    result = Explainer(model).explain(inputs, target=1, method="decompx")
    assert torch.allclose(result.scores.sum(1), result.logits[:, 1], atol=1e-5)


def test_padding_and_chunks():
    model, texts = build_model(CASES["Bert-sdpa"]).double(), make_texts()
    explainer = Explainer(model)
    whole = explainer.explain(texts, target=1, method="decompx").scores
    in_chunks = explainer.explain(texts, target=1, method="decompx", memory=1e-3).scores
    length = int(texts["attention_mask"][1].sum())
    alone = {name: value[1:2, :length] for name, value in texts.items()}
    single = explainer.explain(alone, target=1, method="decompx").scores
    assert torch.allclose(whole, in_chunks, rtol=1e-9, atol=1e-13)
    assert torch.allclose(whole[1:2, :length], single, rtol=1e-9, atol=1e-13)
    assert not whole[1, length:].any()


def test_a_decoder_that_normalises_before():
    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, num_labels=3, pad_token_id=0
    )
    model = GPT2ForSequenceClassification(config).double().eval()
    ids = torch.tensor([[3, 7, 11, 5]])
    result = Explainer(model).explain({"input_ids": ids}, target=1, method="decompx")
    assert torch.allclose(result.scores.sum(1), result.logits[:, 1])
    assert result.scores.abs().min() > 0


def test_what_cannot_be_made_linear_is_refused():
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with pytest.raises(WhenceError, match="makes each operation linear in one"):
        Explainer(LlamaForCausalLM(config).eval()).explain(
            torch.tensor([[3, 7, 11]]), method="decompx"
        )


def test_tokens_before_samples():
    """As `nn.MultiheadAttention` has them inside."""
    model, images = build_model(CASES["torchvision-vit"]).double(), make_images(32, 32).double()
    explainer = Explainer(model)
    whole = explainer.explain(images, target=1, method="decompx").scores
    alone = [explainer.explain(one[None], target=1, method="decompx").scores for one in images]
    assert torch.allclose(whole, torch.cat(alone), rtol=1e-9, atol=1e-12)
    assert whole.abs().min() > 0


def test_an_input_that_is_only_moved_before_the_first_block():
    model = HandWrittenViT().double()
    result = Explainer(model).explain(make_images(32, 32).double(), target=1, method="decompx")
    assert result.scores.abs().min() > 0
