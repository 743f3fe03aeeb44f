"""Tokens of a text that meet outside of attention are found, by the graph or by gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.families.decoders import FAMILIES, SPECIAL, build
from tests.families.models import build_transformers
from tests.zoo import HandWrittenViT
from whence import Explainer, WhenceError
from whence.tracing import mixing, record
from whence.tracing.graph import find_layers

WIDTH, TOKENS = 32, 6


def shift(x: Tensor) -> Tensor:
    """Each token beside half of the one before it, as in recurrent layers."""
    return x + torch.cat([x[:, :1] * 0, x[:, :-1]], 1) / 2


def convolve(x: Tensor) -> Tensor:
    return nn.functional.conv1d(x.mT, torch.full((WIDTH, 1, 3), 0.1), padding=1, groups=WIDTH).mT


def choose_rows(x: Tensor) -> Tensor:
    """Rows in another order and back, as experts take them: no two tokens meet."""
    order = torch.randperm(x.shape[0] * x.shape[1], generator=torch.Generator().manual_seed(0))
    return (x.flatten(0, 1)[order] * 2)[order.argsort()].view_as(x)


class Text(nn.Module):
    """Two blocks of a Transformer over token ids, with something else around them."""

    def __init__(self, **parts: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.vit = nn.Embedding(20, WIDTH), HandWrittenViT()
        self.parts = {"before": torch.clone, "between": torch.clone, "after": torch.clone, **parts}
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.parts["before"](self.words(input_ids))
        if "beside" in self.parts:
            attended, _ = self.attention(x, x, x, need_weights=False)
            x = x + attended + self.parts["beside"](x * 2)
        x = self.parts["between"](self.vit.blocks[0](x))
        x = self.parts["after"](self.vit.blocks[1](x))
        return self.vit.head(self.vit.norm(x)[:, -1])


def find(model: nn.Module) -> int | None:
    """The number of the layer that `find_mixing` finds."""
    ids = torch.arange(2 * TOKENS).reshape(2, TOKENS)
    trace = record(model, (), {"input_ids": ids}, "input_ids")
    layer = mixing.find_mixing(trace)
    return next((n for n, one in enumerate(find_layers(trace)) if one is layer), None)


@pytest.mark.parametrize("mix", [shift, convolve])
def test_tokens_that_meet_are_found(mix):
    assert find(Text()) is None
    assert find(Text(before=mix)) == 0
    assert find(Text(between=mix)) == 1
    assert find(Text(after=mix)) == 1
    assert find(Text(beside=torch.tanh)) is None
    assert find(Text(beside=mix)) == 0


def test_what_the_graph_does_not_prove_is_shown_by_gradients():
    assert (
        find(Text(**dict.fromkeys(("before", "between", "beside", "after"), choose_rows))) is None
    )


def test_layers_of_one_kind_are_looked_at_once(monkeypatch):
    """Experts choose rows: gradients are read between two layers, and after the last."""
    calls, look = [], mixing._mixes_values
    monkeypatch.setattr(mixing, "_mixes_values", lambda *a: (calls.append(a), look(*a))[1])
    sizes = {**FAMILIES["Mixtral"][1], **SPECIAL, "num_hidden_layers": 4}
    model = build_transformers("MixtralForCausalLM", "MixtralConfig", **sizes)
    if not hasattr(model, "set_experts_implementation"):
        pytest.skip("releases of transformers before 5")
    model.set_experts_implementation("batched_mm")
    ids = torch.arange(2 * TOKENS).reshape(2, TOKENS)
    trace = record(model, (), {"input_ids": ids}, "input_ids", lambda r: r.logits[:, -1])
    assert mixing.find_mixing(trace) is None
    assert len(calls) == 2


@pytest.mark.parametrize("family", ["GPT2", "Llama", "GPTNeoX", "Phi3"])
def test_the_graph_alone_proves_most(family, monkeypatch):
    monkeypatch.setattr(mixing, "_mixes_values", lambda *_: pytest.fail("gradients were read"))
    ids = torch.arange(2 * TOKENS).reshape(2, TOKENS)
    trace = record(build(family), (), {"input_ids": ids}, "input_ids", lambda r: r.logits[:, -1])
    assert mixing.find_mixing(trace) is None


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "value_zeroing"])
def test_methods_of_attention_refuse(method):
    ids = torch.arange(TOKENS)[None]
    with pytest.raises(WhenceError, match="Tokens meet outside of attention"):
        Explainer(Text(between=shift)).explain({"input_ids": ids}, method=method)
    scores = Explainer(Text(between=shift)).explain({"input_ids": ids}, method="attnlrp").scores
    assert scores.any()
