"""Softmax attention: fused calls give what torch gives, and maps need not be kept."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.helpers import read_maps, to_double
from tests.tracing.ops.helpers import double
from tests.zoo import CASES, build_model
from whence import Explainer, rules
from whence.tracing import record
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.softmax import masked_softmax

BATCH, HEADS, TOKENS, WIDTH = 3, 2, 6, 8


def test_rows_without_keys_are_zero_and_have_no_gradient():
    scores = double(1, 1, 2, 3).requires_grad_()
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    weights = masked_softmax(scores, 1.0, allowed)
    assert torch.equal(weights[0, 0, 1], torch.zeros(3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[0, 0, 1] == 0).all()


# Fused calls --------------------------------------------------------------------------------------


class AttendingModel(nn.Module):
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
    model = AttendingModel(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        key_heads=1 if name == "grouped queries" else HEADS,
    )
    x = double(BATCH, TOKENS, WIDTH)
    trace = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    logits = model(plain)
    assert torch.allclose(trace.logits, logits)
    classes = torch.ones(BATCH, 1, dtype=torch.long)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), plain)
    assert torch.allclose(trace.read(classes, trace.leaves)[0][0], gradient)
    (relevance,) = read_maps(trace, classes, rules.get("stable"))
    assert relevance.shape == (1, BATCH, HEADS, TOKENS, TOKENS)
    assert relevance.isfinite().all()
    (weights,) = trace.attention()
    assert (relevance[0][weights == 0] == 0).all()


def test_a_mask_that_depends_on_the_input_is_followed():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=k.sum(-1)[..., None, :])

    model, x = AttendingModel(attend), double(BATCH, TOKENS, WIDTH)
    trace = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(plain)[:, 0].sum(), plain)
    classes = torch.zeros(BATCH, 1, dtype=torch.long)
    assert torch.allclose(trace.read(classes, trace.leaves)[0][0], gradient)


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
    trace = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    logits = model(plain)
    assert torch.allclose(trace.logits, logits)
    (gradient,) = torch.autograd.grad(logits[:, 2].sum(), plain)
    classes = torch.full((BATCH, 1), 2)
    assert torch.allclose(trace.read(classes, trace.leaves)[0][0], gradient)
    _, expected = model.attention(
        *[x if batch_first else x.transpose(0, 1)] * 3, **{**call, "need_weights": True}
    )
    assert torch.allclose(trace.attention()[0], expected)


# Attention that keeps no maps --------------------------------------------------------------------


def share_of_a_map(monkeypatch, share: float) -> None:
    """Set which share of the memory the maps of one site may take before they are not kept."""
    monkeypatch.setattr("whence.engine.batching._SHARE_OF_A_MAP", share)


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout"])
@pytest.mark.parametrize(
    "name",
    ["timm-vit-fused", "timm-vit-average-fused", "Bert-sdpa", "Dinov2ForImageClassification-sdpa"],
)
def test_attention_without_kept_maps_is_explained_alike(name, method, monkeypatch):
    case = CASES[name]
    explainer, inputs = Explainer(build_model(case).double()), to_double(case.inputs())
    recorded = []
    forward = ChunkedAttention.forward
    monkeypatch.setattr(
        ChunkedAttention, "forward", lambda *args: recorded.append(args[0]) or forward(*args)
    )
    for rule_set in ("stable", "reference") if method == "tiba" else ("stable",):
        request = {"method": method, "classes": 2, "rules": rule_set}
        share_of_a_map(monkeypatch, 1)
        expected = explainer.explain(inputs, **request)
        assert not recorded
        share_of_a_map(monkeypatch, 1e-9)
        found = explainer.explain(inputs, **request)
        assert [operation.queries_at_once for operation in recorded] == [16, 16, 16]
        assert torch.allclose(found.scores, expected.scores, rtol=1e-9, atol=1e-15)
        recorded.clear()


def test_rules_that_look_at_all_heads_get_their_maps(monkeypatch):
    case = CASES["timm-vit-fused"]
    explainer = Explainer(build_model(case))
    request = {"method": "tiba", "rules": "paper"}
    expected = explainer.explain(case.inputs(), **request).scores
    share_of_a_map(monkeypatch, 1e-9)
    assert torch.equal(explainer.explain(case.inputs(), **request).scores, expected)


class LongAttention(nn.Module):
    """Attention of several heads, in one of the forms that models have."""

    def __init__(self, form, heads=4):
        super().__init__()
        self.form, self.heads = form, heads
        self.into = nn.ModuleList(nn.Linear(8, 3 * 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def attend(self, into, x):
        batch, tokens, _ = x.shape
        q, k, v = into(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = None
        if self.form == "a mask for each head":
            mask = torch.linspace(-2, 2, self.heads * tokens**2, dtype=x.dtype)
            mask = mask.sin().reshape(self.heads, tokens, tokens)
        if self.form == "one key for all heads":
            k, v = k[:, :1], v[:, :1]
        if self.form == "heads before samples":
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.form == "heads before samples":
            y = y.transpose(0, 1)
        if self.form == "an output read twice":
            y = y + y.tanh()
        return y.transpose(1, 2).reshape(batch, tokens, -1)

    def forward(self, x):
        x = x * 1
        if self.form == "side by side":
            a, b = self.attend(self.into[0], x), self.attend(self.into[1], x)
            x = x + (b + a)
        else:
            x = x + self.attend(self.into[0], x)
        return self.head((x + self.attend(self.into[2], x))[:, 0])


FORMS = (
    "a mask for each head",
    "one key for all heads",
    "heads before samples",
    "an output read twice",
    "side by side",
    "one head",
)


@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_attention_of_any_form_is_explained_alike_without_kept_maps(form, batch, monkeypatch):
    torch.manual_seed(0)
    model = LongAttention(form, heads=1 if form == "one head" else 4).double()
    x = double(batch, 5, 8)
    chosen = (("tiba", "stable"), ("tiba", "reference"), ("gae", "stable"), ("rollout", "stable"))
    for method, rule_set in chosen:
        request = {"classes": [0, 2], "method": method, "rules": rule_set}
        share_of_a_map(monkeypatch, 1.0)
        expected = Explainer(model).explain(x, **request).scores
        share_of_a_map(monkeypatch, 1e-12)
        found = Explainer(model).explain(x, **request).scores
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
