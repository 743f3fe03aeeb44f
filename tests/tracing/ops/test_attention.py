"""Fused attention, written out, gives what torch gives."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo import HandWrittenBlock
from whence import Explainer, WhenceError, rules
from whence.tracing import record
from whence.tracing.ops.attention import masked_softmax

BATCH, HEADS, TOKENS, WIDTH = 3, 2, 6, 8


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Attends(nn.Module):
    """Classes are read from the last token, after attention by a function of the test."""

    def __init__(self, attend, key_heads: int = HEADS) -> None:
        super().__init__()
        self.attend = attend
        self.key_heads = key_heads
        self.q = nn.Parameter(double(HEADS * WIDTH, WIDTH))
        self.k = nn.Parameter(double(key_heads * WIDTH, WIDTH))
        self.v = nn.Parameter(double(key_heads * WIDTH, WIDTH))
        self.head = nn.Parameter(double(4, HEADS * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            F.linear(x, w).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
            for w in (self.q, self.k, self.v)
        )
        y = self.attend(q, k, v).transpose(1, 2).flatten(2)
        return F.linear(y[:, -1], self.head)


ALLOWED = torch.rand(BATCH, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.4
ALLOWED[..., -1, 0] = True
ONE_EMPTY_ROW = ALLOWED.clone()
ONE_EMPTY_ROW[:, :, 2] = False
ADDED = torch.zeros(ALLOWED.shape, dtype=torch.float64).masked_fill(~ALLOWED, -math.inf)
FUSED = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "boolean mask": {"attn_mask": ALLOWED},
    "additive mask": {"attn_mask": ADDED + 0.5},
    "boolean mask, empty row": {"attn_mask": ONE_EMPTY_ROW},
    "additive mask, empty row": {
        "attn_mask": torch.zeros(ALLOWED.shape).double().masked_fill(~ONE_EMPTY_ROW, -math.inf)
    },
    "grouped queries": {"enable_gqa": True},
    "dropout": {"dropout_p": 0.0},
}


@pytest.mark.parametrize("name", FUSED)
def test_scaled_dot_product_attention(name):
    options = FUSED[name]
    model = Attends(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        key_heads=1 if name == "grouped queries" else HEADS,
    )
    x = double(BATCH, TOKENS, WIDTH)
    traced = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    logits = model(plain)
    assert torch.allclose(traced.logits, logits)
    classes = torch.ones(BATCH, 1, dtype=torch.long)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), plain)
    assert torch.allclose(traced.read(classes, traced.inputs)[0][0], gradient)
    (relevance,) = traced.relevance(classes, rules.get("stable"))
    assert relevance.shape == (1, BATCH, HEADS, TOKENS, TOKENS)
    assert relevance.isfinite().all()
    (weights,) = traced.attention()
    assert (relevance[0][weights == 0] == 0).all()


def test_a_mask_that_depends_on_the_input_is_followed():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=k.sum(-1)[..., None, :])

    model, x = Attends(attend), double(BATCH, TOKENS, WIDTH)
    traced = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(plain)[:, 0].sum(), plain)
    classes = torch.zeros(BATCH, 1, dtype=torch.long)
    assert torch.allclose(traced.read(classes, traced.inputs)[0][0], gradient)


def test_rows_without_keys_are_zero_and_have_no_gradient():
    scores = double(1, 1, 2, 3).requires_grad_()
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    weights = masked_softmax(scores, 1.0, allowed)
    assert torch.equal(weights[0, 0, 1], torch.zeros(3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[0, 0, 1] == 0).all()


class WithMultiheadAttention(nn.Module):
    def __init__(self, batch_first: bool, call: dict, **options) -> None:
        super().__init__()
        self.call = call
        self.attention = nn.MultiheadAttention(
            WIDTH, HEADS, batch_first=batch_first, dtype=torch.float64, **options
        )
        self.head = nn.Linear(WIDTH, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        turned = x if self.attention.batch_first else x.transpose(0, 1)
        y, _ = self.attention(turned, turned, turned, **self.call)
        y = y if self.attention.batch_first else y.transpose(0, 1)
        return self.head(x[:, -1] + y[:, -1])


PADDED = torch.arange(TOKENS).expand(BATCH, -1) >= torch.tensor([[6], [5], [6]])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", [None, PADDED])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": WIDTH, "vdim": WIDTH}, {"add_zero_attn": True}]
)
def test_multihead_attention(batch_first, need_weights, padding, options):
    call = {
        "need_weights": need_weights,
        "key_padding_mask": padding,
        "average_attn_weights": False,
    }
    model = WithMultiheadAttention(batch_first, call, **options)
    x = double(BATCH, TOKENS, WIDTH)
    traced = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    logits = model(plain)
    assert torch.allclose(traced.logits, logits)
    (gradient,) = torch.autograd.grad(logits[:, 2].sum(), plain)
    classes = torch.full((BATCH, 1), 2)
    assert torch.allclose(traced.read(classes, traced.inputs)[0][0], gradient)
    _, expected = model.attention(
        *[x if batch_first else x.transpose(0, 1)] * 3, **{**call, "need_weights": True}
    )
    assert torch.allclose(traced.attention()[0], expected)


# Layouts of heads and samples --------------------------------------------------------------------


class Folded(nn.Module):
    """Attention whose maps have heads and samples in one dimension or the other way about."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.qkv = nn.Parameter(double(3, HEADS, WIDTH, WIDTH))
        self.head = nn.Parameter(double(4, HEADS * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bnd,hde->bhne", x, w) for w in self.qkv)
        if self.layout == "queries before heads":
            a = torch.einsum("bhid,bhjd->bihj", q, k).softmax(-1)
            y = torch.einsum("bihj,bhjd->bihd", a, v)
            return F.linear(y[:, 0].flatten(1), self.head)
        if self.layout == "softmax over another dimension":
            a = torch.einsum("bhid,bhjd->bijh", q, k).softmax(2)
            y = torch.einsum("bijh,bhjd->bihd", a, v)
            return F.linear(y[:, 0].flatten(1), self.head)
        if self.layout != "samples first":
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        if "folded" in self.layout:
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        y = (q @ k.mT).softmax(-1) @ v
        if "folded" in self.layout:
            y = y.unflatten(0, (HEADS, -1))
        y = y.transpose(0, 1) if self.layout != "samples first" else y
        return F.linear(y[:, :, 0].flatten(1), self.head)


LAYOUTS = (
    "heads first",
    "heads first, folded",
    "queries before heads",
    "softmax over another dimension",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, HEADS, BATCH])
def test_maps_are_laid_out_by_sample_and_head(layout, batch):
    model, usual = Folded(layout), Folded("samples first")
    usual.load_state_dict(model.state_dict())
    x = double(batch, TOKENS, WIDTH)
    classes = torch.zeros(batch, 1, dtype=torch.long)
    ours, expected = (record(m, (x,), {}, 0) for m in (model, usual))
    assert torch.allclose(ours.attention()[0], expected.attention()[0])
    assert torch.allclose(ours.gradient(classes)[0], expected.gradient(classes)[0])
    stable = rules.get("stable")
    assert torch.allclose(
        ours.relevance(classes, stable)[0], expected.relevance(classes, stable)[0]
    )


def test_attention_over_windows_is_refused():
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2], num_heads=[2], window_size=4
    )
    model = transformers.SwinForImageClassification(config)
    for batch in (1, 2):
        with pytest.raises(WhenceError, match="attention over windows or groups cannot be"):
            Explainer(model).explain({"pixel_values": torch.randn(batch, 3, 32, 32)})


def test_attention_that_is_lost_on_the_way_is_an_error():
    class TalkingHeads(HandWrittenBlock):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (torch.einsum("bnd,hde->bhne", x, w) for w in self.qkv)
            a = (q @ k.mT).softmax(-1)
            a = torch.einsum("hg,bhij->bgij", torch.eye(self.heads) + 0.1, a)
            return torch.einsum("bhid,hdw->biw", a @ v, self.out)[:, 0]

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.usual, self.odd = HandWrittenBlock(8, 2), TalkingHeads(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.odd(self.usual(x))

    with pytest.raises(WhenceError, match=r"computed in module 'odd' .*could not be followed"):
        record(Both(), (torch.randn(2, 5, 8),), {}, 0)


@pytest.mark.parametrize("scale_in_place", [True, False])
def test_a_map_scaled_after_softmax_is_found(scale_in_place):
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a = (q @ k.mT).softmax(-1)
        if scale_in_place:
            a *= 1.5
        else:
            a = a * 1.5
        a = a / a.sum(-1, keepdim=True)
        return a @ v

    traced = record(Attends(attend), (double(BATCH, TOKENS, WIDTH),), {}, 0)
    assert len(traced.sites) == 1
    sums = traced.attention()[0].sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums))
