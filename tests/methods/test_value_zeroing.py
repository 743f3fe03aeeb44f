import pytest
import torch
from torch import Tensor, nn

from tests.methods.plain_models import to_double
from tests.zoo import CASES, HandWrittenViT, build_model, find_block_modules, make_images, run_model
from whence import Explainer, WhenceError, WhenceWarning
from whence.methods.value_zeroing import _compute_cosine_distance, _is_row_first


def compute_mixing(model: nn.Module, inputs) -> list[Tensor]:
    """C of each layer, (batch, i, j): one value is zero at a time, by a hook on its projection.

    Only one layer has a hook, so what enters it is what always enters it.
    """
    clean = run_model(model, inputs, output_hidden_states=True).hidden_states
    batch, tokens, _ = clean[0].shape
    real = inputs.get("attention_mask", torch.ones(batch, tokens))
    matrices = []
    for layer, block in enumerate(find_block_modules(model)):
        value = next(m for n, m in block.named_modules() if n.endswith(("value", "v_proj")))
        matrix = torch.zeros(batch, tokens, tokens, dtype=torch.float64)
        for j in range(tokens):

            def zero(_module, _args, output, j=j):
                output = output.clone()
                output[:, j] = 0
                return output

            hook = value.register_forward_hook(zero)
            changed = run_model(model, inputs, output_hidden_states=True).hidden_states[layer + 1]
            hook.remove()
            cosine = torch.cosine_similarity(changed, clean[layer + 1], dim=-1)
            matrix[:, :, j] = (1 - cosine) * real[:, j, None]
        matrices.append(matrix / matrix.sum(-1, keepdim=True))
    return matrices


@pytest.fixture(
    scope="module",
    params=[
        *("Bert-sdpa", "Bert-eager", "ViTForImageClassification-sdpa"),
        *("ViTForImageClassification-eager", "Dinov2ForImageClassification-sdpa"),
    ],
)
def example(request):
    model = build_model(CASES[request.param]).double()
    inputs = to_double(CASES[request.param].inputs())
    with torch.no_grad():
        return model, inputs, compute_mixing(model, inputs)


@pytest.mark.parametrize("layer", [0, 1, -1, None])
def test_one_value_at_a_time(example, layer):
    model, inputs, matrices = example
    joint = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
    for matrix in matrices if layer is None else [matrices[layer]]:
        joint = matrix @ joint
    result = Explainer(model).explain(
        inputs, method="value_zeroing", layer=layer, keep_evidence=True
    )
    row = torch.einsum("bi,bij->bj", result.evidence.pooling, joint)
    assert result.evidence.pooling[:, 0].min() > 0.2
    assert torch.allclose(result.scores, row[:, -result.scores.shape[1] :], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_every_family(name):
    """Values weigh something, and rows are shares."""
    case = CASES[name]
    explainer = Explainer(build_model(case))
    result = explainer.explain(case.inputs(), method="value_zeroing", layer=1)
    sums = result.scores.sum(1)
    assert (result.scores >= 0).all()
    assert (sums > 0.1).all()
    assert (sums < 1 + 1e-5).all()
    if case.prefix == 0:
        assert torch.allclose(sums, torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("name", ["Bert-sdpa", "torchvision-vit"])
def test_parts_batches_and_padding(name):
    model, inputs = build_model(CASES[name]).double(), to_double(CASES[name].inputs())
    explainer = Explainer(model)
    whole = explainer.explain(inputs, method="value_zeroing").scores
    in_parts = explainer.explain(inputs, method="value_zeroing", memory=1e-3).scores
    assert torch.allclose(whole, in_parts, rtol=1e-7, atol=1e-14)
    text = not isinstance(inputs, Tensor)
    length = int(inputs["attention_mask"][1].sum()) if text else None
    alone = {k: v[1:2, :length] for k, v in inputs.items()} if text else inputs[1:2]
    single = explainer.explain(alone, method="value_zeroing").scores
    assert torch.allclose(whole[1:2, :length], single, rtol=1e-7, atol=1e-14)


class Layouts(HandWrittenViT):
    """The same numbers, with heads and samples or tokens and samples in other orders."""

    layout = "batch, heads"

    def forward(self, image):
        p = self.patch
        x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.class_token.expand(len(image), 1, -1), self.embed(x)], 1)
        x = x + self.positions
        for block in self.blocks:
            x = self._block(block, x)
        return self.head(self.norm(x)[:, 0])

    def _block(self, block, x):
        batch, tokens, width = x.shape
        h = block.norm1(x)
        q, k, v = (torch.einsum("bnd,hde->bhne", h, w) for w in block.qkv)
        if self.layout == "heads, batch":
            q, k, v = (y.transpose(0, 1) for y in (q, k, v))
        elif self.layout == "batch * heads":
            q, k, v = (y.flatten(0, 1) for y in (q, k, v))
        elif self.layout == "heads * batch":
            q, k, v = (y.transpose(0, 1).flatten(0, 1) for y in (q, k, v))
        maps = (q @ k.mT / 8**0.5).softmax(-1)
        mixed = (v.mT @ maps.mT).mT if self.layout == "keys first" else maps @ v
        if self.layout.startswith("heads"):
            mixed = mixed.reshape(-1, batch, tokens, 8).transpose(0, 1)
        mixed = mixed.reshape(batch, -1, tokens, 8)
        added = torch.einsum("bhid,hdw->biw", mixed, block.out)
        if self.layout == "tokens * batch":
            x, added = (y.transpose(0, 1).reshape(-1, width) for y in (x, added))
        elif self.layout == "tokens, batch":
            x, added = (y.transpose(0, 1) for y in (x, added))
        x = x + added
        x = x + block.mlp(block.norm2(x))
        if self.layout.startswith("tokens"):
            x = x.reshape(tokens, batch, width).transpose(0, 1)
        return x


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "layout",
    [
        *("heads, batch", "batch * heads", "heads * batch", "keys first"),
        *("tokens * batch", "tokens, batch"),
    ],
)
def test_layouts(layout, batch):
    model, pixels = Layouts().double(), make_images(32, 32).double()[:batch]
    expected = Explainer(model).explain(pixels, method="value_zeroing").scores
    model.layout = layout
    ours = Explainer(model).explain(pixels, method="value_zeroing").scores
    assert torch.allclose(ours, expected, rtol=1e-8)
    assert expected.std() > 1e-3


def test_small_distances_keep_their_digits():
    a = torch.randn(5, 64)
    b = a + 1e-4 * torch.randn(5, 64)
    exact = 1 - torch.cosine_similarity(a.double(), b.double(), dim=-1)
    assert torch.allclose(_compute_cosine_distance(a, b).double(), exact, rtol=1e-2)
    # A rounding error is no distance.
    assert torch.equal(_compute_cosine_distance(a, a * (1 + 2e-7)), torch.zeros(5))


def test_values_of_zero_give_zeros():
    model = HandWrittenViT()
    with torch.no_grad():
        for block in model.blocks:
            block.qkv[2].zero_()
    # Values that are all zero stand for no part of the image.
    with pytest.warns(WhenceWarning, match="could not be proven"):
        result = Explainer(model).explain(make_images(32, 32), method="value_zeroing")
    assert torch.equal(result.scores, torch.zeros(3, 17))


def test_a_text_of_one_token():
    model = build_model(CASES["Bert-sdpa"])
    result = Explainer(model).explain({"input_ids": torch.tensor([[7]])}, method="value_zeroing")
    assert torch.allclose(result.scores, torch.ones(1, 1))


@pytest.mark.parametrize("layer", [-4, 3])
def test_a_layer_that_does_not_exist(layer):
    with pytest.raises(WhenceError, match=f"layer={layer} does not exist: the model has 3"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="value_zeroing", layer=layer
        )


def test_the_model_is_left_alone():
    model = build_model(CASES["Bert-eager"]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = CASES["Bert-eager"].inputs()
    Explainer(model).explain(inputs, method="value_zeroing", classes=[0, 1])
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_rows_are_told_from_heads_that_share_their_values():
    torch.manual_seed(0)
    heads = torch.randn(2, 5, 3).repeat_interleave(2, 0)  # two pairs of equal heads
    noise = 1e-16 * torch.randn(8, 5, 3).double()
    by_row = torch.cat([heads, heads]).double()
    assert _is_row_first(by_row + noise, 2)
    assert not _is_row_first(heads.repeat_interleave(2, 0).double(), 2)


def build_swin():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 2, "embed_dim": 8, "depths": [2, 1]}
    config = transformers.SwinConfig(**sizes, num_heads=[2, 2], window_size=2)
    return transformers.SwinForImageClassification(config).double().eval()


def test_windows_and_merged_tokens():
    """The values are compared with plain loops in tests/families/test_window_values.py."""
    model, images = build_swin(), torch.randn(2, 3, 8, 8).double()
    explainer = Explainer(model)
    whole = explainer.explain(images, 1, method="value_zeroing")
    assert whole.grid == (4, 4)
    assert torch.allclose(whole.scores.sum(-1), torch.ones(2).double())
    assert whole.scores.min() >= 0
    alone = explainer.explain(images[1:], 1, method="value_zeroing")
    assert torch.allclose(alone.scores[0], whole.scores[1], rtol=1e-6)
    with pytest.raises(WhenceError, match="multiplies all layers: leave out layer="):
        explainer.explain(images, 1, method="value_zeroing", layer=0)


def test_tokens_that_meet_after_the_attention_are_refused():
    transformers = pytest.importorskip("transformers")
    sizes = {"depths": [1, 1], "hidden_sizes": [8, 8], "num_attention_heads": [1, 1]}
    sizes |= {"sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2]}
    config = transformers.SegformerConfig(num_encoder_blocks=2, decoder_hidden_size=8, **sizes)
    model = transformers.SegformerForImageClassification(config).eval()
    with pytest.raises(WhenceError, match=r"Tokens meet after the attention in .*'attention_norm'"):
        Explainer(model).explain(torch.randn(1, 3, 32, 32), method="value_zeroing")
