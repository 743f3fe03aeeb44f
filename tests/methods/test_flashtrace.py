"""flashtrace against its formula in plain loops."""

import pytest
import torch
from torch import Tensor

from tests.families import vision_language as models
from tests.families.models import enlarge_weights
from tests.zoo import CASES, build_model
from whence import Explainer, WhenceError, targets

SIZES = {
    "vocab_size": 40,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}
IDS = torch.tensor([[3, 9, 4, 11, 5, 17, 6, 21, 7, 30, 8, 12]])


def build(attention: str = "eager"):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention)
    return enlarge_weights(model)


@pytest.fixture(scope="module")
def llama():
    return build()


def measure(part: Tensor, whole: Tensor) -> float:
    near = sum(abs(float(x)) for x in whole)
    return max(near - sum(abs(float(a - b)) for a, b in zip(part, whole, strict=True)), 0.0)


def trace_plainly(model, ids: Tensor, weights: list[float]) -> list[float]:
    """What each token brings to positions with weights, in loops over layers, heads and tokens."""
    entering, middle = [], []
    hooks = []
    for layer in model.model.layers:
        norms = layer.input_layernorm, layer.post_attention_layernorm
        for norm, kept in zip(norms, (entering, middle), strict=True):
            hooks.append(norm.register_forward_hook(lambda _m, args, _o, k=kept: k.append(args[0])))
    with torch.no_grad():
        maps = model(ids, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    length, heads, width = ids.shape[1], SIZES["num_attention_heads"], 4
    scores = [0.0] * length
    for layer, x, mid, attention in zip(model.model.layers, entering, middle, maps, strict=True):
        values = layer.self_attn.v_proj(layer.input_layernorm(x))[0].detach()
        out = layer.self_attn.o_proj.weight.detach()
        whole = sum(w * mid[0, i] for i, w in enumerate(weights)).detach()
        kept = sum(w * x[0, i] for i, w in enumerate(weights)).detach()
        near = [0.0] * length
        for head in range(heads):
            block = out[:, head * width : (head + 1) * width]
            for j in range(length):
                share = sum(w * attention[0, head, i, j] for i, w in enumerate(weights))
                near[j] += measure((share * (block @ values[j])).detach(), whole)
        total = sum(near) + measure(kept, whole)
        scores = [score + one / total for score, one in zip(scores, near, strict=True)]
    return scores


def test_a_span_is_traced_at_once(llama):
    result = Explainer(llama).explain(IDS, targets.span(9, 11), method="flashtrace", hops=0)
    expected = trace_plainly(llama, IDS, [0.0] * 8 + [0.5, 0.5] + [0.0] * 2)
    assert torch.allclose(result.scores[0], torch.tensor(expected, dtype=torch.float64))
    assert not result.scores[0, 10:].any()


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_what_lies_on_generated_tokens_is_traced_on(llama, hops):
    target = targets.span(9, 11, prompt=6)
    found = Explainer(llama).explain(IDS, target, method="flashtrace", hops=hops).scores[0]
    base = trace_plainly(llama, IDS, [0.0] * 8 + [0.5, 0.5] + [0.0] * 2)
    generated, ratio = range(6, 10), 1.0
    expected, last = base[:6], base
    for _ in range(hops):
        lies = sum(last[n] for n in generated)
        ratio *= lies / sum(last)
        weights = [last[n] / lies if n in generated else 0.0 for n in range(12)]
        last = trace_plainly(llama, IDS, weights)
        expected = [one + ratio * more for one, more in zip(expected, last[:6], strict=True)]
    expected += [ratio * last[n] for n in generated]
    assert torch.allclose(found[:10], torch.tensor(expected, dtype=torch.float64))
    # Each hop leaves a part of what there was with the generated tokens.
    assert float(found[6:10].sum()) <= sum(base[6:10]) * 0.5**hops


def test_fused_attention_and_padding_change_nothing(llama):
    target, short = targets.span(-2, prompt=5), IDS[:, :9]
    alone = [
        Explainer(llama).explain(one, target, method="flashtrace").scores[0] for one in (IDS, short)
    ]
    ids = torch.cat([IDS, torch.nn.functional.pad(short, (0, 3))])
    mask = torch.stack([torch.ones(12), torch.arange(12) < 9]).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    whole = Explainer(build("sdpa")).explain(batch, target, method="flashtrace")
    assert torch.allclose(whole.scores[0], alone[0])
    assert torch.allclose(whole.scores[1, :9], alone[1])
    assert not whole.scores[1, 9:].any()


def test_generated_text_is_traced_to_the_prompt(llama):
    options = {"method": "flashtrace", "eos_token_id": None}
    story = Explainer(llama).explain_generation(IDS, 3, **options, hops=2)
    ids = torch.cat([IDS, story.target], 1)
    target = targets.token(13, int(story.target[0, 2]), prompt=12)
    alone = Explainer(llama).explain(ids, target, method="flashtrace", hops=2)
    assert torch.allclose(story.scores[0, 2], alone.scores[0])
    plain = Explainer(llama).explain_generation(IDS, 3, **options, hops=0)
    assert torch.equal(story.scores[0, 0], plain.scores[0, 0])  # nothing was generated before it
    assert (story.scores[0, 2, :12] >= plain.scores[0, 2, :12]).all()
    assert story.scores[0, 2, 12:14].sum() < plain.scores[0, 2, 12:14].sum()


def test_images_between_words():
    model, inputs = models.build_llava()
    both = ["input_ids", "pixel_values"]
    result = Explainer(model).explain(inputs, targets.token(), of=both, method="flashtrace")
    sums = [float(one.scores.sum()) for one in result.values()]
    assert min(sums) > 0
    assert sum(sums) < 2  # at most 1 for each of two layers; the rest is the skip connection's


def test_shares_of_a_layer_are_at_most_one():
    case = CASES["ViTForImageClassification-sdpa"]
    model, inputs = build_model(case), case.inputs()
    result = Explainer(model).explain(inputs, method="flashtrace")
    layers = len(model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer)
    assert result.scores.min() >= 0
    assert 0 < result.scores.sum(-1).max() <= layers


def test_wrong_hops_are_refused(llama):
    for hops in (-1, -5):
        with pytest.raises(WhenceError, match=f"hops={hops} of method 'flashtrace' must be 0 or m"):
            Explainer(llama).explain(IDS, targets.token(), method="flashtrace", hops=hops)
    with pytest.raises(WhenceError, match="must be a whole number"):
        Explainer(llama).explain(IDS, targets.token(), method="flashtrace", hops=1.5)


def test_windows_are_refused():
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1]}
    config = transformers.SwinConfig(**sizes, num_heads=[2, 2], window_size=4)
    model = transformers.SwinForImageClassification(config)
    with pytest.raises(WhenceError, match=r"one sequence|windows"):
        Explainer(model).explain(torch.randn(1, 3, 32, 32), method="flashtrace")
