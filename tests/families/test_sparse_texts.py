"""Sparse attention over texts: maps found as derivatives of outputs, then multiplied."""

import copy

import pytest
import torch
from torch import Tensor

from tests.families.flow_checks import TOLERANCE, measure_error
from tests.families.models import TEXT, build_transformers, make_ids
from whence import Explainer

HEADS, WORDS = 2, 16


def differentiate_attention(model, call) -> list[Tensor]:
    """For each layer, the mean over heads of d output / d value, (tokens, tokens).

    Each head's output is a sum of values, weighted by its map, so that this is the map, however it
    is computed.
    """
    own = copy.deepcopy(model)
    values: dict[int, list[Tensor]] = {}
    outputs: dict[int, Tensor] = {}
    layers = [
        m for m in own.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "output")
    ]
    for number, layer in enumerate(layers):
        values[number] = []
        for name, module in layer.named_modules():
            if name.endswith(("value", "value_global")):
                module.register_forward_hook(
                    lambda _m, _a, out, number=number: values[number].append(out)
                )
        layer.output.dense.register_forward_pre_hook(
            lambda _m, args, number=number: outputs.update({number: args[0]})
        )
    call(own)
    maps = []
    for number in range(len(layers)):
        output = outputs[number].reshape(-1, outputs[number].shape[-1])
        width = output.shape[-1] // HEADS
        rows = torch.zeros(len(output), len(output)).double()
        for token in range(len(output)):
            for head in range(HEADS):
                at = head * width
                found = torch.autograd.grad(
                    output[token, at], values[number], retain_graph=True, allow_unused=True
                )
                for one in found:
                    if one is not None:
                        rows[token] += one.reshape(len(output), -1)[:, at].double() / HEADS
        maps.append(rows)
    return maps


def roll_out(maps: list[Tensor]) -> Tensor:
    """The first token's row of the product of (I + A), rows divided by their sum."""
    row = torch.eye(len(maps[0])).double()[0]
    for one in reversed(maps):
        step = torch.eye(len(one)).double() + one
        row = row @ (step / step.sum(-1, keepdim=True))
    return row


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Longformer", "BigBird"])
def test_rollout_of_sparse_attention(family):
    """Windows of words with one that all read, or blocks of words that are drawn at random."""
    own = {"attention_window": 4} if family == "Longformer" else {}
    if family == "BigBird":
        own = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
    model = build_transformers(
        f"{family}ForSequenceClassification",
        f"{family}Config",
        **(TEXT | own | {"num_labels": 3, "max_position_embeddings": 64}),
    )
    ids = make_ids(2, WORDS)
    result = Explainer(model).explain({"input_ids": ids}, 1, method="rollout")
    for sample in range(2):
        one = ids[sample : sample + 1]
        maps = differentiate_attention(model, lambda net, one=one: net(input_ids=one))
        assert torch.allclose(maps[0].sum(-1), torch.ones(WORDS).double(), atol=1e-6)
        assert (maps[0] == 0).any()
        error = measure_error(result.scores[sample], roll_out(maps))
        assert error < TOLERANCE
