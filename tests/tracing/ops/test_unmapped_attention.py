"""Attention without maps: gradients, and sums over queries, beside those by maps."""

import copy
import math

import pytest
import torch

from whence import rules
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.products import MatMul

SIZE = (2, 3, 7, 5)  # batch, heads, tokens, width


def build(causal=True, mask=None):
    torch.manual_seed(0)
    attention = ChunkedAttention(0.7, mask, 4, causal=causal)
    attention.forward(*(torch.randn(SIZE, dtype=torch.float64) for _ in range(3)))
    return attention


def compute_maps(attention, causal=True):
    scores = attention.queries @ attention.keys.mT * 0.7
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize("targets", [(), (1,), (2,)])
def test_rows_are_read_back_by_transposed_maps(causal, width, targets):
    attention = build(causal)
    rows = torch.randn(*targets, *SIZE[:-1], width, dtype=torch.float64)
    expected = compute_maps(attention, causal).mT @ rows
    torch.testing.assert_close(attention.read_back(rows), expected)
    torch.testing.assert_close(attention.read_back(rows), expected)  # known by now


def test_what_was_read_last_is_not_taken_for_something_else():
    attention = build()
    rows = torch.randn(SIZE, dtype=torch.float64)
    maps = compute_maps(attention)
    for values in (rows, rows[None], rows * 2, rows.flip(-1)):
        torch.testing.assert_close(attention.read_back(values), maps.mT @ values)
    some = attention.select_queries(2, 3)
    few = torch.randn(*SIZE[:2], 3, SIZE[-1], dtype=torch.float64)
    torch.testing.assert_close(some.read_back(few), maps[..., 2:5, :].mT @ few)


@pytest.mark.parametrize("causal", [True, False])
def test_the_mean_over_keys_that_are_seen(causal):
    attention = build(causal)
    values = torch.randn(SIZE, dtype=torch.float64)
    seen = (compute_maps(attention, causal) > 0).double()
    expected = (seen / seen.sum(-1, keepdim=True)) @ values
    found = attention.average_seen(values)
    torch.testing.assert_close(found.expand_as(expected), expected)
    assert build(False, torch.zeros(7, 7, dtype=torch.float64)).average_seen(values) is None
    assert build().select_queries(2, 3).average_seen(values) is None


@pytest.mark.parametrize("name", ["balanced", "attnlrp", "residual", "reslrp"])
@pytest.mark.parametrize("targets", [(), (2,)])
def test_factors_are_what_rules_come_to_map_by_map(name, targets):
    attention, rule_set = build(), rules.get(name)
    value = torch.randn(*targets, *SIZE, dtype=torch.float64)
    found = rule_set.propagate(attention, value)
    expected = attention.propagate(value, rule_set.propagate)  # which asks for each operation
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_extended_rules_are_asked_map_by_map():
    asked = []

    def note(operation, value):
        asked.append(operation)
        return operation.gradient(value)

    rule_set = rules.get("balanced").extend("mine", matmul=note)
    rule_set.propagate(build(), torch.randn(SIZE, dtype=torch.float64))
    assert all(isinstance(one, MatMul) for one in asked)
    assert asked


def test_a_graph_is_not_used_after_its_inputs_are_overwritten_or_freed():
    attention = build()
    rows = torch.randn(SIZE, dtype=torch.float64)
    expected = attention.read_back(rows)
    again = copy.copy(attention)
    again.forward(attention.queries, attention.keys, attention.values)
    overwritten = attention.keys
    attention.preserve(overwritten)
    overwritten.zero_()
    torch.testing.assert_close(attention.read_back(rows.clone()), expected)
    attention.set_aside()
    assert attention.keys.is_meta
    attention.take_over(build())
    torch.testing.assert_close(attention.read_back(rows.clone()), expected)


def test_an_output_that_is_overwritten_does_not_change_gradients():
    """Kernels keep the output for the gradients of queries and keys."""
    attention, value = build(), torch.randn(SIZE, dtype=torch.float64)
    expected = attention.gradient(value)
    overwritten = attention.output
    attention.preserve(overwritten)
    overwritten.mul_(3)
    for found, other in zip(attention.gradient(value), expected, strict=True):
        torch.testing.assert_close(found, other)
