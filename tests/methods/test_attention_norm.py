import pytest
import torch
from torch import Tensor, nn

from tests.methods.plain_models import to_double
from tests.test_golden import CLASS_TOKEN
from tests.zoo import (
    CASES,
    HandWrittenViT,
    build_model,
    find_block_modules,
    make_images,
    make_texts,
    run_model,
)
from whence import Explainer, WhenceError
from whence.inputs.arguments import ModelArguments
from whence.methods.shared.value_vectors import LinearNorm, project_values
from whence.tracing import record
from whence.tracing.graph import find_blocks, find_projection

INCLUDES = ["weights", "residual", "layer_norm"]


def find_module(layer: nn.Module, *ends: str) -> nn.Module:
    """The first module of a layer whose name ends so."""
    return next(module for name, module in layer.named_modules() if name.endswith(ends))


def compute_vectors(model: nn.Module, inputs, include: str, after: bool) -> tuple[list, list, list]:
    """For each layer, the vectors (batch, i, j, width) summed in loops.

    And what is left out: the bias of the projection, and what the sum with it should be.
    """
    outputs: list[Tensor] = []
    hooks = [
        find_module(layer, "LayerNorm" if after else "layernorm_after").register_forward_hook(
            lambda _m, args, result: outputs.append(result if include == "layer_norm" else args[0])
        )
        for layer in find_block_modules(model)
    ]
    output = run_model(model, inputs, output_hidden_states=True, output_attentions=True)
    for hook in hooks:
        hook.remove()
    found, biases = [], []
    for layer, x, maps in zip(
        find_block_modules(model), output.hidden_states, output.attentions, strict=False
    ):
        entering = x if after else find_module(layer, "layernorm_before")(x)
        dense = find_module(layer, "o_proj", "attention.output.dense")
        batch, heads, tokens, _ = maps.shape
        values = find_module(layer, "value", "v_proj")(entering).unflatten(-1, (heads, -1))
        weight = dense.weight.unflatten(1, (heads, -1))
        f = [
            [[weight[:, h] @ values[b, j, h] for j in range(tokens)] for h in range(heads)]
            for b in range(batch)
        ]
        summed = torch.zeros(batch, tokens, tokens, x.shape[-1], dtype=x.dtype)
        for b in range(batch):
            for i in range(tokens):
                for j in range(tokens):
                    for h in range(heads):
                        summed[b, i, j] += maps[b, h, i, j] * f[b][h][j]
                if include != "weights":
                    summed[b, i, i] += x[b, i]
        bias = dense.bias
        if include == "layer_norm" and after:
            norm = find_module(layer, "LayerNorm")
            total = summed.sum(2) + dense.bias
            spread = (total.var(-1, unbiased=False) + norm.eps).sqrt()[:, :, None, None]
            summed = (summed - summed.mean(-1, keepdim=True)) / spread * norm.weight
            bias = (dense.bias - dense.bias.mean()) / spread[:, :, 0] * norm.weight + norm.bias
        found.append(summed.detach())
        biases.append(bias)
    return found, biases, outputs


def multiply_layers(matrices: list[Tensor], identity: bool) -> Tensor:
    eye = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
    joint, alone = eye, eye
    for matrix in matrices:
        matrix = matrix / matrix.sum(-1, keepdim=True)
        if identity:
            joint, alone = (eye + matrix) / 2 @ joint, eye / 2 @ alone
        else:
            joint = matrix @ joint
    return joint - alone if identity else joint


def build_tiny(name: str) -> nn.Module:
    """Eager, so that it gives its attention maps; an epsilon that counts."""
    model = build_model(CASES[f"{name}-eager"]).double()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.3
    return model


@pytest.fixture(scope="module", params=["Bert", "ViTForImageClassification"])
def example(request):
    model, after = build_tiny(request.param), request.param == "Bert"
    inputs = to_double(CASES[f"{request.param}-eager"].inputs())
    return model, inputs, after, {i: compute_vectors(model, inputs, i, after) for i in INCLUDES}


@pytest.mark.parametrize("include", INCLUDES)
def test_vectors_summed_in_a_loop(example, include):
    model, inputs, after, known = example
    matrices = [v.norm(dim=-1) for v in known[include][0]]
    first = 0 if after else 1
    explainer = Explainer(model, layout=CLASS_TOKEN if after else None)
    for layer in (0, 2, -1):
        ours = explainer.explain(inputs, method="attention_norm", include=include, layer=layer)
        row = matrices[layer][:, 0] / matrices[layer][:, 0].sum(-1, keepdim=True)
        assert torch.allclose(ours.scores, row[:, first:], rtol=1e-9, atol=1e-14)
    ours = explainer.explain(inputs, method="attention_norm", include=include)
    row = multiply_layers(matrices, include == "weights")[:, 0, first:]
    assert torch.allclose(ours.scores, row, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("include", ["residual", "layer_norm"])
def test_parts_sum_to_what_the_layer_computes(example, include):
    """The reference above leaves nothing out but biases."""
    _, _, after, known = example
    parts, biases, outputs = known[include]
    if not after and include == "layer_norm":
        return  # in this model it is the norm of the feed-forward part
    for vector, bias, output in zip(parts, biases, outputs, strict=True):
        assert torch.allclose(vector.sum(2) + bias, output, rtol=1e-9, atol=1e-11)


def test_layer_norm_is_residual_in_models_that_normalise_before(example):
    model, inputs, after, _ = example
    by_residual, by_norm = (
        Explainer(model).explain(inputs, method="attention_norm", include=include).scores
        for include in ("residual", "layer_norm")
    )
    assert torch.equal(by_residual, by_norm) == (not after)


@pytest.mark.parametrize("name", CASES)
def test_parts_and_the_bias_are_all_of_the_attention(name):
    """In every family, LayerScale included; the norm behind is linear once it is held."""
    model, inputs = build_model(CASES[name]).double(), to_double(CASES[name].inputs())
    call = ModelArguments.from_inputs(inputs, model)
    recorded = record(model, call.args, dict(call.kwargs), call.main_at)
    for block, attention in zip(find_blocks(recorded), recorded.attention(), strict=True):
        projection = find_projection(recorded, block.site, block.skip_addition)
        values, _ = project_values(recorded, block.sites, projection)
        total = torch.einsum("bhqk,bhkw->bqw", attention, values)
        left_out = block.skip_addition.output - block.input - total
        bias = left_out[:1, :1]
        assert torch.allclose(left_out, bias.expand_as(left_out), rtol=1e-8, atol=1e-10)
        if block.post_norm is not None:
            norm = LinearNorm(recorded, block.site.where, block.post_norm)
            beta = block.post_norm.function(torch.zeros_like(bias))
            parts = norm.scale(total + block.input) + norm.scale(bias)
            assert torch.allclose(parts / norm.spread + beta, block.post_norm.output, rtol=1e-8)


def test_values_that_several_heads_share():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 100}
    config = transformers.LlamaConfig(
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, num_labels=3, **sizes
    )
    model = transformers.LlamaForSequenceClassification._from_config(
        config, attn_implementation="eager"
    ).eval()
    inputs = {"input_ids": torch.randint(5, 90, (2, 7))}
    ours = Explainer(model).explain(inputs, method="attention_norm", layer=0)
    output = model.model(**inputs, output_hidden_states=True, output_attentions=True)
    layer, maps = model.model.layers[0], output.attentions[0]
    values = layer.self_attn.v_proj(layer.input_layernorm(output.hidden_states[0]))
    values = values.unflatten(-1, (2, 8)).repeat_interleave(2, 2)
    weight = layer.self_attn.o_proj.weight.unflatten(1, (4, 8))
    row = torch.einsum("bhj,bjhd,whd->bjw", maps[:, :, -1], values, weight).norm(dim=-1)
    assert torch.allclose(ours.scores, row / row.sum(-1, keepdim=True), rtol=1e-4)


class PostNorm(HandWrittenViT):
    """RMSNorm behind the sum, average pooling."""

    def __init__(self, norm=nn.RMSNorm) -> None:
        super().__init__()
        for block in self.blocks:
            block.norm1, block.norm2 = norm(32), norm(32)

    def forward(self, image):
        p = self.patch
        x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.embed(x) + self.positions[1:]
        self.seen = []
        for block in self.blocks:
            q, k, v = (torch.einsum("bnd,hde->bhne", x, w) for w in block.qkv)
            maps = (q @ k.mT / 8**0.5).softmax(-1)
            y = x + torch.einsum("bhid,hdw->biw", maps @ v, block.out)
            self.seen.append((x, maps, v, y))
            y = block.norm1(y)
            x = block.norm2(y + block.mlp(y))
        return self.head(x.mean(1))


def test_rms_norm_and_average_pooling():
    model, pixels = PostNorm().double(), make_images(32, 32).double()
    for block in model.blocks:
        nn.init.normal_(block.norm1.weight)
    model(pixels)
    matrices = []
    for (x, maps, v, y), block in zip(model.seen, model.blocks, strict=True):
        parts = torch.einsum("bhij,bhjd,hdw->bijw", maps, v, block.out)
        parts = parts + torch.eye(16)[None, :, :, None] * x[:, :, None]
        eps = torch.finfo(torch.float64).eps
        size = (y.square().mean(-1) + eps).sqrt()[:, :, None, None]
        matrices.append((parts / size * block.norm1.weight).norm(dim=-1))
    ours = Explainer(model).explain(pixels, method="attention_norm", include="layer_norm")
    assert torch.allclose(ours.scores, multiply_layers(matrices, False).mean(1), rtol=1e-9)


def test_a_norm_over_more_than_one_token():
    class OverTokens(nn.LayerNorm):
        def __init__(self, width) -> None:
            super().__init__((16, width))

    model = PostNorm(OverTokens)
    with pytest.raises(WhenceError, match="Use include='residual'"):
        Explainer(model).explain(make_images(32, 32), method="attention_norm", include="layer_norm")


@pytest.mark.parametrize("include", INCLUDES)
@pytest.mark.parametrize("name", ["Bert-sdpa", "torchvision-vit", "timm-vit-average-fused"])
def test_precision_batches_and_padding(name, include):
    model, inputs = build_model(CASES[name]), CASES[name].inputs()
    options = {"method": "attention_norm", "include": include}
    ours = Explainer(model).explain(inputs, **options).scores
    text = not isinstance(inputs, Tensor)
    length = int(inputs["attention_mask"][1].sum()) if text else None
    alone = {k: v[1:2, :length] for k, v in inputs.items()} if text else inputs[1:2]
    single = Explainer(model).explain(alone, **options).scores
    assert torch.allclose(ours[1:2, :length], single, rtol=1e-4, atol=1e-7)
    if length is not None:
        assert ours[1, length:].abs().max() == 0
    exact = Explainer(model.double()).explain(to_double(inputs), **options).scores
    assert torch.allclose(ours.double(), exact, rtol=1e-4, atol=1e-6)


def test_the_same_for_every_class():
    explainer = Explainer(build_model(CASES["Bert-sdpa"]))
    result = explainer.explain(make_texts(), method="attention_norm", classes=[0, 1])
    assert result.scores.shape == (3, 2, 10)
    assert torch.equal(result.scores[:, 0], result.scores[:, 1])


@pytest.mark.parametrize("layer", [-4, 3])
def test_a_layer_that_does_not_exist(layer):
    with pytest.raises(WhenceError, match=f"layer={layer} does not exist: the model has 3"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="attention_norm", layer=layer
        )


def test_an_option_that_does_not_exist():
    with pytest.raises(WhenceError, match="must be 'weights' or 'residual' or 'layer_norm'"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="attention_norm", include="all"
        )


@pytest.mark.parametrize("include", INCLUDES)
def test_degenerate_inputs(include):
    model = PostNorm(nn.LayerNorm)
    with torch.no_grad():
        for block in model.blocks:
            block.qkv.zero_()
        model.embed.bias.zero_()
        model.positions.zero_()
    result = Explainer(model).explain(
        torch.zeros(1, 3, 32, 32), method="attention_norm", include=include
    )
    assert torch.isfinite(result.scores).all()
    if include == "weights":
        assert torch.equal(result.scores, torch.zeros(1, 16))
