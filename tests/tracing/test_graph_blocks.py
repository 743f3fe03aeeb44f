"""Blocks around each attention: what enters and leaves them is what transformers reports."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.tracing.helpers import predicted_classes, record_inputs, to_double
from tests.zoo import BATCH, CASES, DEPTH, HandWrittenViT, build_model, make_images, run_model
from whence import WhenceError, rules
from whence.evidence import Evidence
from whence.layout import Layout, find_layout
from whence.tracing import Trace
from whence.tracing.graph import find_blocks

TRANSFORMERS = [name for name in CASES if name.endswith(("-sdpa", "-eager"))]


def make_evidence(trace: Trace, *kinds: str) -> Evidence:
    layout = find_layout(Layout(), trace.sites[0].key_count, trace.leaves[0], trace.grids)
    return Evidence(trace, predicted_classes(trace), layout, kinds, rules.get("stable"))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_hidden_states_are_those_of_transformers(name):
    model, inputs = build_model(CASES[name]).double(), to_double(CASES[name].inputs())
    hidden = make_evidence(record_inputs(model, inputs), "hidden").hidden
    theirs = run_model(model, inputs, output_hidden_states=True).hidden_states
    assert len(hidden) == len(theirs) == DEPTH + 1
    for ours, expected in zip(hidden, theirs, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_gradients_at_hidden_states(name):
    model, inputs = build_model(CASES[name]).double(), to_double(CASES[name].inputs())
    found = make_evidence(record_inputs(model, inputs), "hidden_gradient")
    output = run_model(model, inputs, output_hidden_states=True)
    logit = output.logits.gather(1, found.classes).sum()
    # The last hidden state that is reported may be a copy which nothing reads.
    expected = torch.autograd.grad(logit, output.hidden_states[:-1])
    for ours, theirs in zip(found.hidden_gradient, expected, strict=False):
        assert torch.allclose(ours[0], theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_what_leaves_a_block_enters_the_next(name):
    model, inputs = build_model(CASES[name]).double(), to_double(CASES[name].inputs())
    blocks = find_blocks(record_inputs(model, inputs))
    assert len(blocks) == DEPTH
    for block, following in pairwise(blocks):
        assert torch.equal(block.output.output, following.input)
        assert not torch.equal(block.input, following.input)


class SequenceFirst(HandWrittenViT):
    """Blocks get (tokens, batch, width), or both dimensions in one."""

    def __init__(self, folded: bool) -> None:
        super().__init__()
        self.folded = folded

    def forward(self, image):
        p = self.patch
        x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.class_token.expand(len(image), 1, -1), self.embed(x)], 1)
        x = (x + self.positions).transpose(0, 1)
        for block in self.blocks:
            x = self._block(block, x)
        return self.head(self.norm(x)[0])

    def _block(self, block, x):
        tokens, batch, width = x.shape
        x = x.reshape(-1, width) if self.folded else x
        h = block.norm1(x).reshape(tokens, batch, width)
        q, k, v = (torch.einsum("nbd,hde->bhne", h, w) for w in block.qkv)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + torch.einsum("bhid,hdw->ibw", mixed, block.out).reshape(x.shape)
        return (x + block.mlp(block.norm2(x))).reshape(tokens, batch, width)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("batch", [1, BATCH, 17])
def test_hidden_states_of_sequences_before_samples(folded, batch):
    """17 samples are as many as tokens; a class token is all that the last block's reader sees."""
    model = SequenceFirst(folded).double()
    pixels = torch.randn(batch, 3, 32, 32, dtype=torch.float64)
    found = make_evidence(record_inputs(model, pixels), "hidden", "hidden_gradient")
    for i in range(batch):
        alone = make_evidence(record_inputs(model, pixels[i : i + 1]), "hidden", "hidden_gradient")
        for ours, expected in zip(found.hidden, alone.hidden, strict=True):
            assert torch.allclose(ours[i], expected[0], rtol=1e-9)
        for ours, expected in zip(found.hidden_gradient, alone.hidden_gradient, strict=True):
            assert torch.allclose(ours[:, i], expected[:, 0], rtol=1e-8, atol=1e-12)


def test_values_are_computed_from_their_input():
    model = HandWrittenViT().double()
    found = make_evidence(
        record_inputs(model, make_images(32, 32).double()), "hidden", "value_input"
    )
    assert len(found.value_input) == DEPTH
    for hidden, entering, block in zip(found.hidden, found.value_input, model.blocks, strict=False):
        assert torch.allclose(entering, block.norm1(hidden), rtol=1e-10)


def test_operations_of_a_block():
    model = HandWrittenViT().double()
    for block in find_blocks(record_inputs(model, make_images(32, 32).double())):
        assert [operation.kind for operation in block.projection] == ["linear"]
        assert block.post_norm is None
        assert block.output.kind == "add"
        assert torch.equal(
            block.skip_addition.a + block.skip_addition.b, block.skip_addition.output
        )
    bert = build_model(CASES["Bert-sdpa"])
    for block in find_blocks(record_inputs(bert, CASES["Bert-sdpa"].inputs())):
        assert block.post_norm.name == block.output.name == "layer_norm"


def test_attention_without_a_skip_connection_is_refused():
    class NoSkip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = x * 1
            return self.head(nn.functional.scaled_dot_product_attention(x, x, x)[:, 0])

    with pytest.raises(WhenceError, match=r"NoSkip.forward has no skip connection around it"):
        find_blocks(record_inputs(NoSkip(), torch.randn(2, 5, 8)))
