"""Attention sites: found where maps weigh values, and laid out by sample and head."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tracing.attention_model import AttentionLayer, make_inputs
from tests.tracing.helpers import read_maps
from tests.tracing.ops.helpers import double
from tests.zoo import HandWrittenBlock
from whence import WhenceError, rules
from whence.tracing import record

BATCH, HEADS, TOKENS, WIDTH = 3, 2, 6, 8


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
    for how in (None, rules.get("stable")):
        (found,), (wanted,) = (read_maps(trace, classes, how) for trace in (ours, expected))
        assert torch.allclose(found, wanted)
    values = ours.sites[0].split_values(batch)
    assert torch.allclose(values, expected.sites[0].split_values(batch))


def test_a_map_that_cannot_be_followed_to_its_values_is_an_error():
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
def test_a_map_that_is_scaled_after_its_softmax_is_found(scale_in_place):
    def mix(a: Tensor, v: Tensor) -> Tensor:
        if scale_in_place:
            a *= 1.5
        else:
            a = a * 1.5
        return (a / a.sum(-1, keepdim=True)) @ v

    trace = record(AttentionLayer(mix=mix), (make_inputs(),), {}, 0)
    assert len(trace.sites) == 1
    sums = trace.attention()[0].sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums))


def test_a_released_site_keeps_its_shape():
    (site,) = record(AttentionLayer(), (make_inputs(),), {}, 0).sites
    shape = site.weights.shape
    site.release()
    assert site.weights.is_meta
    assert (site.query_count, site.key_count) == shape[-2:]
