import pytest
import torch
from torch import nn

from tests import zoo
from tests.maximization.samples import build_objective, build_tiny
from tests.zoo import CASES, HandWrittenViT, build_model
from whence import WhenceError, activation_maximization
from whence.maximization import Channel, Head, Token
from whence.maximization.objectives import build_inner_objective

FAMILIES = [
    "ViTForImageClassification-sdpa",
    "DeiTForImageClassificationWithTeacher-eager",
    "Dinov2WithRegistersForImageClassification-sdpa",
    "timm-vit-fused",
    "timm-vit-average-unfused",
    "timm-vit-rectangle-fused",
    "torchvision-vit",
    "hand-written",
]


def compute_gradient(model, target, name):
    """Gradient of what whence maximises, and of what `plain` reads by hooks, at a picture."""
    inputs = CASES[name].inputs()
    inputs = inputs["pixel_values"] if isinstance(inputs, dict) else inputs
    inputs = inputs[:1].double().requires_grad_()
    objective = build_objective(model, target, inputs.detach())
    value = objective.compute(inputs)
    return inputs, value, torch.autograd.grad(value, inputs)[0]


@pytest.mark.parametrize("layer", [0, 1, zoo.DEPTH])
@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_equal_those_of_hooks(name, layer):
    model = build_model(CASES[name]).double()
    hidden = []
    blocks = list(zoo.find_block_modules(model))

    def keep(value):
        hidden.append((value[0] if isinstance(value, tuple) else value).clone())

    if layer < zoo.DEPTH:
        hook = blocks[layer].register_forward_pre_hook(lambda _m, args: keep(args[0]))
    else:
        hook = blocks[-1].register_forward_hook(lambda _m, _args, out: keep(out))
    plain = CASES[name].inputs()
    plain = plain["pixel_values"] if isinstance(plain, dict) else plain
    plain = plain[:1].double().requires_grad_()
    model(plain)
    hook.remove()
    (state,) = hidden
    for target, expected in (
        (Channel(layer, 7), state[0, :, 7].sum() / state.shape[1]),
        (Token(layer, 9), (state[0, 9] ** 2).sum() / state.shape[2]),
    ):
        (gradient,) = torch.autograd.grad(expected, plain, retain_graph=True)
        _, value, found = compute_gradient(model, target, name)
        assert torch.allclose(value, expected, rtol=1e-10)
        assert gradient.abs().max() > 0
        assert (found - gradient).abs().max() < 1e-8 * max(1, gradient.abs().max())


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        ("timm-vit-fused", lambda block: block.attn.proj),
        ("timm-vit-rectangle-unfused", lambda block: block.attn.proj),
        ("ViTForImageClassification-eager", None),
        ("Dinov2ForImageClassification-sdpa", None),
    ],
)
def test_heads_equal_those_of_hooks(name, projection):
    model = build_model(CASES[name]).double()
    block = list(zoo.find_block_modules(model))[1]
    if projection is None:  # the first square projection that is named as the output
        joins = [m for n, m in block.named_modules() if n.endswith(("output.dense", "o_proj"))]
        join = next(m for m in joins if m.in_features == m.out_features)
        heads = 4
    else:
        join, heads = projection(block), block.attn.num_heads
    joined = []
    hook = join.register_forward_pre_hook(lambda _m, args: joined.append(args[0]))
    plain = CASES[name].inputs()
    plain = plain["pixel_values"] if isinstance(plain, dict) else plain
    plain = plain[:1].double().requires_grad_()
    model(plain)
    hook.remove()
    width = joined[0].shape[-1] // heads
    for head in range(heads):
        expected = (joined[0][0, :, head * width : (head + 1) * width] ** 2).mean()
        (gradient,) = torch.autograd.grad(expected, plain, retain_graph=True)
        _, value, found = compute_gradient(model, Head(1, head), name)
        assert torch.allclose(value, expected, rtol=1e-10)
        assert (found - gradient).abs().max() < 1e-8 * max(1, gradient.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_the_model(name):
    model = build_model(CASES[name]).double()
    inputs, value, found = compute_gradient(model, 3, name)
    returned = model(inputs)
    expected = getattr(returned, "logits", returned)[0, 3]
    assert torch.equal(value, expected)
    (gradient,) = torch.autograd.grad(expected, inputs)
    assert (found - gradient).abs().max() < 1e-8


class WritingBlock(zoo.HandWrittenBlock):
    """Adds what was attended to, and what was computed from it, to the very tensor it was given."""

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (torch.einsum("bnd,hde->bhne", h, w) for w in self.qkv)
        attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x += torch.einsum("bhid,hdw->biw", attention @ v, self.out)
        x += self.mlp(self.norm2(x))
        return x


@pytest.mark.parametrize("target", [Channel(1, 4), Token(2, 6), Token(3, 6), Head(1, 3)], ids=str)
def test_states_that_the_model_overwrites(target):
    model = HandWrittenViT().double()
    writes = HandWrittenViT().double()
    writes.blocks = nn.ModuleList(WritingBlock(32, 4) for _ in range(zoo.DEPTH)).double()
    writes.load_state_dict(model.state_dict())
    _, expected, gradient = compute_gradient(model, target, "hand-written")
    _, value, found = compute_gradient(writes, target, "hand-written")
    assert torch.allclose(value, expected, rtol=1e-10)
    assert (found - gradient).abs().max() < 1e-8


def test_negative_numbers_count_from_the_end():
    model, inputs = build_tiny(), zoo.make_images(32, 32)[:1]
    for one, same in (
        (Channel(-1, -1), Channel(3, 31)),
        (Token(-2, -1), Token(2, 16)),
        (Head(-1, -1), Head(2, 3)),
    ):
        assert torch.equal(
            *(build_inner_objective(model, t, inputs).compute(inputs) for t in (one, same))
        )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (5, "Class 5 does not exist: the model has 5 classes, 0 to 4"),
        ("LABEL_9", "There is no class 'LABEL_9'. The model has 'LABEL_0'"),
        (None, "A class is an index or a name, not None"),
        (Channel(4, 0), "The model has 4 hidden states, 0 to 3; there is no 4"),
        (Channel(-5, 0), "The model has 4 hidden states, 0 to 3; there is no -5"),
        (Channel(0, 32), "The hidden state of layer 0 has 32 channels, 0 to 31; there is no 32"),
        (Token(0, 17), "has 17 tokens, 0 to 16; there is no 17"),
        (Head(3, 0), "The model has 3 attention layers, 0 to 2; there is no 3"),
        (Head(1, 4), "Layer 1 has 4 heads, 0 to 3; there is no 4"),
    ],
)
def test_targets_that_do_not_exist(target, message):
    with pytest.raises(WhenceError) as raised:
        activation_maximization(build_tiny(), target, steps=1)
    assert message in str(raised.value)


def test_targets_take_whole_numbers():
    with pytest.raises(WhenceError, match=r"Channel\(layer=\.\.\.\) is a whole number, not 1\.5"):
        Channel(1.5, 0)
    with pytest.raises(WhenceError, match=r"Head\(head=\.\.\.\) is a whole number, not True"):
        Head(0, True)


def test_a_target_that_no_picture_changes():
    model = build_tiny()
    with pytest.raises(WhenceError, match="its gradient is zero"):
        activation_maximization(model, Token(0, 0), steps=1)
    with torch.no_grad():
        model.classifier.weight.zero_()
    with pytest.raises(WhenceError, match="its gradient is zero"):
        activation_maximization(model, 1, steps=1)


def test_a_model_whose_logits_are_not_obvious():
    class Odd(HandWrittenViT):
        def forward(self, image):
            return {"scores": super().forward(image)[None]}

    with pytest.raises(WhenceError, match="finds no logits"):
        activation_maximization(Odd(), 1, image_size=32, steps=1)
    with pytest.raises(WhenceError, match=r"Logits of shape \(1, classes\) are needed"):
        activation_maximization(Odd(), 1, image_size=32, steps=1, output=lambda r: r["scores"])
    found = activation_maximization(
        Odd(), 1, image_size=32, steps=1, output=lambda r: r["scores"][0]
    )
    assert found.name == "class 1"
