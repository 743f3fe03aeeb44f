import pytest
import timm
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from tests.methods.plain_models import to_double
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts, run_model
from whence import Explainer, WhenceError, targets

EAGER = "ViTForImageClassification-eager"


def scale_to_one(scores: Tensor) -> Tensor:
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low)


def read_layers(hidden, maps, head, target: int, first: int = 0) -> Tensor:
    """Sum each layer's positive gradients in a loop: (batch, keys)."""
    total = torch.zeros(len(maps[0]), maps[0].shape[-1], dtype=maps[0].dtype)
    for state, attention in list(zip(hidden, maps, strict=True))[first:]:
        score = head(state)[:, target].sum()
        (gradient,) = torch.autograd.grad(score, attention, retain_graph=True)
        for sample in range(len(gradient)):
            for of_head in gradient[sample]:
                for row in of_head:
                    total[sample] += row.clamp(min=0)
    return total


@pytest.mark.parametrize("first", [0, -2])
@pytest.mark.parametrize("pooling", ["mean", "model"])
def test_each_layer_read_by_the_head(pooling, first):
    model, inputs = build_model(CASES[EAGER]).double(), to_double(CASES[EAGER].inputs())
    output = run_model(model, inputs, output_hidden_states=True, output_attentions=True)

    def head(state: Tensor) -> Tensor:
        if pooling == "mean":
            return model.classifier(model.vit.layernorm(state.mean(1)))
        return model.classifier(model.vit.layernorm(state[:, 0]))

    expected = read_layers(output.hidden_states[1:], output.attentions, head, 2, first)[:, 1:]
    result = Explainer(model).explain(
        inputs, target=2, method="legrad", pooling=pooling, start_layer=first
    )
    assert torch.allclose(result.scores, scale_to_one(expected), atol=1e-12)


def test_the_map_of_pooling_by_attention():
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=3,
        num_heads=4,
        num_classes=5,
        class_token=False,
        global_pool="map",
    )
    model = model.double().eval()
    inputs = make_images(32, 32).double()
    pool, states = model.attn_pool, []
    keep = lambda _module, _inputs, output: states.append(output)  # noqa: E731
    hooks = [block.register_forward_hook(keep) for block in model.blocks]
    model(inputs)
    for hook in hooks:
        hook.remove()
    expected = torch.zeros(3, 16, dtype=torch.float64)
    for state in states:
        x = model.norm(state)
        keys, values = pool.kv(x).reshape(3, 16, 2, 4, 8).permute(2, 0, 3, 1, 4)
        query = pool.q(pool.latent.expand(3, -1, -1)).reshape(3, 1, 4, 8).transpose(1, 2)
        maps = (query * pool.scale @ keys.mT).softmax(-1)
        y = pool.proj((maps @ values).transpose(1, 2).reshape(3, 1, 32))
        y = (y + pool.mlp(pool.norm(y)))[:, 0]
        score = model.head(model.fc_norm(y))[:, 1].sum()
        (gradient,) = torch.autograd.grad(score, maps)
        expected += gradient.clamp(min=0).sum(1)[:, 0]
    result = Explainer(model).explain(inputs, target=1, method="legrad")
    assert torch.allclose(result.scores, scale_to_one(expected), atol=1e-12)


def test_padding_is_no_part_of_the_mean():
    model, texts = build_model(CASES["Bert-sdpa"]).double(), make_texts()
    explainer = Explainer(model)
    whole = explainer.explain(texts, target=1, method="legrad").scores
    length = int(texts["attention_mask"][1].sum())
    alone = {name: value[1:2, :length] for name, value in texts.items()}
    single = explainer.explain(alone, target=1, method="legrad").scores
    assert torch.allclose(whole[1:2, :length], single, atol=1e-10)
    assert not whole[1, length:].any()
    assert single.max() == 1


def test_later_tokens_do_not_count_in_a_language_model():
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).double().eval()
    ids = torch.tensor([[3, 7, 11, 5]])
    blocks: list[Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda _m, _a, y: blocks.append(y))
    output = model.model(ids, output_attentions=True)
    logits = model.lm_head(model.model.norm(blocks[-1].mean(1)))
    (gradient,) = torch.autograd.grad(logits[0, 9], output.attentions[0])
    allowed = torch.ones(4, 4).tril()
    expected = (gradient.clamp(min=0) * allowed).sum((1, 2))
    result = Explainer(model).explain(
        ids, target=targets.token(token=9), method="legrad", pooling="mean"
    )
    assert torch.allclose(result.scores, scale_to_one(expected), atol=1e-10)


class ReadsPixels(HandWrittenViT):
    """A head that also reads the pixels themselves."""

    def forward(self, image):
        return super().forward(image) + image.mean((1, 2, 3))[:, None]


class ReadsAnEarlierBlock(HandWrittenViT):
    """A head that also reads what leaves the first block."""

    def forward(self, image):
        kept = []
        hook = self.blocks[0].register_forward_hook(lambda _m, _a, y: kept.append(y))
        logits = super().forward(image)
        hook.remove()
        return logits + F.linear(kept[0].mean(1), self.head.weight)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ReadsPixels, "reads more of the input than what leaves the last block"),
        (ReadsAnEarlierBlock, "not within one sequence of tokens that passes all layers in turn"),
    ],
)
def test_a_head_that_reads_more_than_the_last_block(model, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(model()).explain(make_images(32, 32), method="legrad")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_layer": 9}, "start_layer=9 does not exist"),
        ({"pooling": "max"}, "'mean' or 'model'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="legrad", **options)


def test_scores_by_other_gradients():
    explainer, images = Explainer(HandWrittenViT()), make_images(32, 32)
    plain = explainer.explain(images, target=1, method="legrad").scores
    balanced = explainer.explain(images, target=1, method="legrad", gradients="balanced").scores
    assert balanced.amax(1).eq(1).all()
    assert not torch.allclose(plain, balanced)
