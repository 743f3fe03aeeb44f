"""Blocks around each attention: what enters and leaves them is what transformers reports."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.layouts import make_layout
from tests.tracing.helpers import predicted_classes, record_inputs, to_double
from tests.zoo import BATCH, CASES, DEPTH, HandWrittenViT, build_model, make_images, run_model
from whence import WhenceError, rules
from whence.evidence import Evidence
from whence.targets import ClassScalars
from whence.tracing import Trace
from whence.tracing.graph import find_blocks, find_projection

TRANSFORMERS = [name for name in CASES if name.endswith(("-sdpa", "-eager"))]


def make_evidence(trace: Trace, *kinds: str) -> Evidence:
    tokens = trace.sites[0].key_count
    layout = make_layout(None, 0, tokens)
    return Evidence(
        trace, ClassScalars(predicted_classes(trace)), layout, kinds, rules.get("stable")
    )


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
    logit = output.logits.gather(1, found.targets.indices).sum()
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
    trace = record_inputs(model, make_images(32, 32).double())
    for block in find_blocks(trace):
        assert [
            operation.kind for operation in find_projection(trace, block.site, block.skip_addition)
        ] == ["linear"]
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


class Residual(nn.Module):
    """Two blocks whose terms are added in some way; the inputs of the blocks are kept."""

    def __init__(self, add) -> None:
        super().__init__()
        self.add = add
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(8))
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)

    def attend(self, x):
        q, k, v = (self.maps[number](x) for number in range(3))
        return self.maps[3](nn.functional.scaled_dot_product_attention(q, k, v))

    def feed_forward(self, x):
        return self.maps[5](nn.functional.gelu(self.maps[4](x)))

    def forward(self, x):
        x = self.maps[6](x)
        self.entering, self.leaving = [], []
        for _ in range(2):
            self.entering.append(x.detach())
            x = self.add(self, x)
            self.leaving.append(x.detach())
        return self.head(x[:, 0])


def post_norm(m, x):
    x = m.norms[0](x + m.attend(x))
    return m.norms[1](x + m.feed_forward(x))


def sandwich(m, x):
    x = x + m.norms[1](m.attend(m.norms[0](x)))
    return m.norms[3](m.feed_forward(m.norms[2](x))) + x


def write_in_place(m, x):
    x = x.clone()
    x += m.attend(m.norms[0](x))
    return x + m.feed_forward(m.norms[1](x))


def gate_both(m, x):
    gate = m.maps[7](x).sigmoid()
    return gate * m.attend(x) + (1 - gate) * x


def add_projected_values(m, x):
    q, k, v = (m.maps[number](x) for number in range(3))
    return x + m.maps[3](nn.functional.scaled_dot_product_attention(q, k, v) + v)


RESIDUALS = {
    "pre-norm": lambda m, x: (y := x + m.attend(m.norms[0](x))) + m.feed_forward(m.norms[1](y)),
    "post-norm": post_norm,
    "sandwich": sandwich,
    "parallel, skip first": lambda m, x: x + m.attend(m.norms[0](x)) + m.feed_forward(x),
    "parallel, skip last": lambda m, x: m.feed_forward(m.norms[0](x)) + m.attend(x) + x,
    "parallel, skip inside": lambda m, x: m.attend(x) + (m.feed_forward(x) + x),
    "parallel, stacked": lambda m, x: torch.stack([m.feed_forward(x), x, m.attend(x)]).sum(0),
    "parallel, summed": lambda m, x: sum([m.feed_forward(x), m.attend(x), x]),
    "parallel, twice": lambda m, x: (m.attend(x) + m.attend(m.norms[0](x))) + x,
    "scaled": lambda m, x: torch.add(m.attend(x), x * m.scale, alpha=0.5),
    "in place": write_in_place,
    "gated branch": lambda m, x: x + m.maps[7](x).sigmoid() * m.attend(x),
    "gated both": gate_both,
    "reshaped": lambda m, x: (x.flatten(0, 1) + m.attend(x).flatten(0, 1)).view_as(x),
    "norm is the stream": lambda m, x: (y := m.norms[0](x)) + m.attend(y),
    "values added": add_projected_values,
}


@pytest.mark.parametrize("add", RESIDUALS.values(), ids=RESIDUALS)
def test_the_skip_connection_is_the_term_that_is_the_blocks_input(add):
    model, x = Residual(add).double(), torch.randn(2, 5, 8).double()
    model(x)
    trace = record_inputs(model, x)
    blocks = find_blocks(trace)
    entering = model.entering
    if add is RESIDUALS["norm is the stream"]:
        entering = [model.norms[0](x) for x in entering]
    assert len(blocks) == 2
    for block, expected in zip(blocks, entering, strict=True):
        assert torch.allclose(block.input, expected, rtol=1e-12)
    assert torch.allclose(blocks[-1].output.output.reshape(2, 5, 8), model.leaving[-1])


@pytest.mark.parametrize("name", RESIDUALS)
def test_gradients_at_the_skip_connection_are_total(name):
    """A gradient at a block's input comes through the attention as well as past it."""
    add = RESIDUALS[name]
    model, x = Residual(add).double(), torch.randn(2, 5, 8).double()
    model(x)
    trace = record_inputs(model, x)
    classes = torch.zeros(2, 1, dtype=torch.long)
    ours = trace.read(classes, [find_blocks(trace)[1].input_edge])[0][0]
    entering = model.entering[1].clone().requires_grad_()
    start = model.norms[0](entering) if add is RESIDUALS["norm is the stream"] else entering
    if start is not entering:
        start = start.detach().requires_grad_()
        after = start + model.attend(start)
    else:
        after = RESIDUALS["pre-norm" if add is write_in_place else name](model, entering)
    expected = torch.autograd.grad(model.head(after[:, 0])[:, 0].sum(), start)[0]
    assert torch.allclose(ours, expected, rtol=1e-10, atol=1e-12)


VALUES_OF_A_NORM = ("pre-norm", "sandwich", "parallel, skip first")


@pytest.mark.parametrize("name", [name for name in RESIDUALS if name != "norm is the stream"])
def test_parts_of_a_block(name):
    model, x = Residual(RESIDUALS[name]).double(), torch.randn(2, 5, 8).double()
    model(x)
    trace = record_inputs(model, x)
    for block, entering, leaving in zip(
        find_blocks(trace), model.entering, model.leaving, strict=True
    ):
        assert torch.allclose(block.output.output.reshape(2, 5, 8), leaving)
        assert (block.post_norm is not None) == (name == "post-norm")
        if name != "in place":
            index, number = block.input_reader
            assert trace.entries[index].inputs[number] == block.input_edge
            values = model.norms[0](entering) if name in VALUES_OF_A_NORM else entering
            assert torch.allclose(block.value_input, values)


def test_values_of_another_sequence_and_through_several_maps():
    class Reads(Residual):
        def forward(self, x):
            memory, x = self.norms[0](x), self.maps[6](x)
            q, k = self.maps[0](x), self.maps[1](memory)
            v = self.maps[7](self.norms[1](self.maps[2](memory)))
            x = x + nn.functional.scaled_dot_product_attention(q, k, v)
            v = self.maps[7](self.norms[1](self.maps[2](self.norms[2](x))))
            x = x + self.norms[3](self.maps[3](nn.functional.scaled_dot_product_attention(v, v, v)))
            return self.head(x[:, 0])

    model, x = Reads(None).double(), torch.randn(2, 5, 8).double()
    trace = record_inputs(model, x)
    cross, own = find_blocks(trace)
    nearest = model.norms[1](model.maps[2](model.norms[0](x)))
    assert torch.allclose(cross.value_input, nearest)
    assert torch.allclose(own.value_input, model.norms[2](own.input))
    assert [one.name for one in find_projection(trace, cross.site, cross.skip_addition)] == []
    assert [one.name for one in find_projection(trace, own.site, own.skip_addition)] == [
        "linear",
        "layer_norm",
    ]


def test_a_sum_over_features_of_a_stack_is_no_addition_of_terms():
    class Sums(Residual):
        def forward(self, x):
            x = self.maps[6](x)
            both = torch.stack([x, self.attend(x)], 1).sum(-1)
            return self.head(both.flatten(1)[:, :8])

    with pytest.raises(WhenceError, match="has no skip connection"):
        find_blocks(record_inputs(Sums(None).double(), torch.randn(2, 5, 8).double()))
