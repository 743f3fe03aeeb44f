"""Norms, variances, gates and other calls that are made of several operations."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.tracing.attention_model import AttentionLayer, assert_same, read_everything
from tests.tracing.recorders.definitions import (
    double,
    find_jacobian,
    read_each,
    record_function,
    share_terms,
)
from whence import NoRuleError

SHAPE = (2, 3, 4)
OTHER = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(3)).double() + 0.5

COMPOSITES = {
    "norm": lambda x: x.norm(dim=-1),
    "norm of all": lambda x: torch.stack([one.norm() for one in x])[:, None],
    "norm of two dimensions": lambda x: x.norm(p=2, dim=(1, 2), keepdim=True),
    "norm of order 1": lambda x: x.norm(1, -1),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "greatest": lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1),
    "least": lambda x: torch.norm(x, -math.inf, dim=-1),
    "linalg norm": lambda x: torch.linalg.norm(x, dim=-1, keepdim=True),
    "Frobenius": lambda x: torch.linalg.norm(x, "fro", dim=(1, 2))[:, None],
    "variance": lambda x: x.var(-1),
    "biased variance": lambda x: torch.var(x, (1, 2), unbiased=False, keepdim=True),
    "corrected variance": lambda x: torch.var(x, 1, correction=0),
    "deviation": lambda x: x.std(-1, keepdim=True),
    "both": lambda x: torch.cat(torch.var_mean(x, -1), -1),
    "cosine": lambda x: F.cosine_similarity(x, x.roll(1, -1), dim=-1),
    "cosine with a constant": lambda x: F.cosine_similarity(OTHER, x, dim=2),
    "distance": lambda x: F.pairwise_distance(x, 2 * x.flip(-1)),
    "addcmul": lambda x: torch.addcmul(x, x.sin(), x.cos(), value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x.sin(), OTHER),
    "lerp": lambda x: torch.lerp(x, x.flip(-1), 0.3),
    "product of all": lambda x: x.prod(-1),
    "differences": lambda x: x.diff(dim=1),
    "bilinear": lambda x: F.bilinear(x.square(), x.sin()[..., :3], OTHER.mT),
    "vecdot": lambda x: torch.linalg.vecdot(x, x.sin()),
    "outer": lambda x: torch.stack([torch.outer(one[0], one[1]) for one in x]),
    "dot": lambda x: torch.stack([torch.dot(one[0], one[1]) for one in x])[:, None],
    "root of mean squares": lambda x: F.lp_pool1d(x.abs() + 1, 2, 2),
    "soft maximum": lambda x: x.logsumexp(-1),
    "soft maximum of two": lambda x: torch.logaddexp(x, x.flip(-1)),
    "running maximum": lambda x: x.cummax(-1)[0],
    "special softmax": lambda x: torch.special.softmax(x, -1),
    "median": lambda x: x.median(-1)[0],
    "top": lambda x: x.topk(2)[0],
    "top, scattered": lambda x: torch.zeros_like(x).scatter(-1, *x.topk(2)[::-1]),
    "rolled": lambda x: x.roll((1, 2), (1, 2)),
    "rotated": lambda x: x.rot90(1, (1, 2)),
    "strided": lambda x: x.contiguous().as_strided((2, 2, 4), (12, 4, 1)),
    "written to places": lambda x: x.index_put(
        (torch.tensor([0, 1]), torch.tensor([1, 1])), x[:, 0]
    ),
    "arcsine": lambda x: torch.asinh(x),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_gradients_are_autograds_and_relevance_is_kept(name):
    function = COMPOSITES[name]
    x = double(*SHAPE)
    trace = record_function(function, x)
    assert torch.allclose(trace.logits, function(x).flatten(1))
    assert torch.allclose(read_each(trace, None), find_jacobian(function, x))
    stable = read_each(trace, "stable")
    reaches = find_jacobian(function, x).any(-1)
    assert torch.allclose(stable.sum(-1), reaches.double())
    assert (stable >= 0).all()


def test_a_norm_shares_by_squares():
    x = double(*SHAPE)
    stable = read_each(record_function(lambda x: x.norm(dim=(1, 2))[:, None], x), "stable")
    squares = x.flatten(1).square()
    assert torch.allclose(stable[0], squares / squares.sum(-1, keepdim=True))


def test_a_norm_of_zeros_has_the_gradient_that_torch_gives_it():
    x = double(*SHAPE)
    x[0, 0] = 0

    def divide(x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)

    found = read_each(record_function(divide, x), None)
    assert torch.allclose(found, find_jacobian(divide, x))
    assert found.isfinite().all()


def test_norms_of_matrices_are_refused():
    trace = record_function(lambda x: torch.linalg.norm(x, 2, dim=(1, 2))[:, None], double(*SHAPE))
    with pytest.raises(NoRuleError, match="`linalg_norm`"):
        read_each(trace, "stable")


# Activations spelled by hand ---------------------------------------------------------------------

GATED = {
    "SiLU": (lambda x: x * torch.sigmoid(x), F.silu),
    "gate first": (lambda x: x.sigmoid() * x, F.silu),
    "GELU": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), F.gelu),
    "GELU by tanh": (
        lambda x: 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))).tanh()),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "GELU by products": (
        lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "hard swish": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "Mish": (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
    "SiLU as a quotient": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "squared ReLU": (lambda x: F.relu(x) * F.relu(x), lambda x: F.relu(x).square()),
}


@pytest.mark.parametrize("rule_set", ["stable", "attnlrp", "balanced", "reference"])
@pytest.mark.parametrize("name", GATED)
def test_activations_by_hand_are_as_those_of_torch(name, rule_set):
    by_hand, fused = GATED[name]
    ours = read_everything(AttentionLayer(after=by_hand), rule_set)
    assert_same(ours, read_everything(AttentionLayer(after=fused), rule_set))


def norm_by_variance(x: Tensor) -> Tensor:
    spread = x.var(-1, unbiased=False, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(spread + 1e-5)


def norm_by_deviation(x: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / deviation


NORMS = {
    "variance": (norm_by_variance, lambda x: F.layer_norm(x, (8,))),
    "deviation": (norm_by_deviation, lambda x: F.layer_norm(x, (8,), eps=0)),
    "length": (
        lambda x: x / x.norm(dim=-1, keepdim=True) * math.sqrt(8),
        lambda x: F.rms_norm(x, (8,), eps=0),
    ),
    "normalize": (lambda x: x / x.norm(p=1, dim=-1, keepdim=True), lambda x: F.normalize(x, 1, -1)),
}


@pytest.mark.parametrize("rule_set", ["attnlrp", "balanced"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_by_hand_hold_their_spread_as_those_of_torch(name, rule_set):
    by_hand, fused = NORMS[name]
    ours = read_everything(AttentionLayer(after=by_hand), rule_set)
    assert_same(ours, read_everything(AttentionLayer(after=fused), rule_set))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.mean(-1, keepdim=True).sigmoid().expand_as(x),
        lambda x: x * x.softmax(-1),
        lambda x: x * x.flip(-1).sigmoid(),
        lambda x: x[:, :1].expand_as(x) * x.sigmoid(),
    ],
)
def test_what_reads_other_elements_is_no_gate(function):
    """Both factors then get a half."""
    trace = record_function(function, double(*SHAPE))
    assert "product" in [entry.operation.kind for entry in trace.entries]


def test_soft_maxima_share_by_softmax():
    x = double(*SHAPE)
    jacobian = find_jacobian(lambda x: x.logsumexp(-1), x)
    stable = read_each(record_function(lambda x: x.logsumexp(-1), x), "stable")
    assert torch.allclose(stable, share_terms(jacobian, torch.ones_like(x), abs))
