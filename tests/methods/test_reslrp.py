"""ResLRP against its rules, propagated by hand as relevance, with loops and divisions."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence import Explainer, WhenceError

WIDTH, TOKENS = 6, 4


class Small(nn.Module):
    """Attention and a feed-forward part, each with a skip connection, or both added at once."""

    def __init__(self, parallel: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down, self.head = (
            nn.Linear(WIDTH, 9),
            nn.Linear(9, WIDTH),
            nn.Linear(WIDTH, 3),
        )
        self.parallel = parallel

    def attend(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / math.sqrt(WIDTH)
        return self.out(scores.softmax(-1) @ self.v(x))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        x = inputs_embeds
        if self.parallel:
            return self.head((self.attend(x) + self.feed(x) + x)[:, 0])
        x = x + self.attend(x)
        return self.head((x + self.feed(x))[:, 0])


def share_linear(linear: nn.Linear, x: Tensor, relevance: Tensor) -> Tensor:
    """R_j = sum_i x_j w_ij / y_i R_i, the bias keeping its part."""
    y, shares = linear(x), torch.zeros_like(x)
    for token, i, j in itertools.product(range(TOKENS), range(y.shape[-1]), range(x.shape[-1])):
        part = x[token, j] * linear.weight[i, j] / y[token, i]
        shares[token, j] += part * relevance[token, i]
    return shares


def share_product(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Half of the relevance of A B to each factor."""
    product, to_a, to_b = a @ b, torch.zeros_like(a), torch.zeros_like(b)
    for i, j, n in itertools.product(*map(range, (*product.shape, a.shape[1]))):
        half = a[i, n] * b[n, j] / product[i, j] * relevance[i, j] / 2
        to_a[i, n] += half
        to_b[n, j] += half
    return to_a, to_b


def share_skip(terms: list[Tensor], relevance: Tensor, gamma: float) -> list[Tensor]:
    """The gamma rule, element by element."""
    shares = [torch.zeros_like(relevance) for _ in terms]
    for place in itertools.product(*map(range, relevance.shape)):
        total = sum(z[place] for z in terms)
        weighed = [z[place] * (1 + gamma if z[place] * total >= 0 else 1) for z in terms]
        for share, one in zip(shares, weighed, strict=True):
            share[place] = one / sum(weighed) * relevance[place]
    return shares


def share_attention(model: Small, x: Tensor, relevance: Tensor) -> Tensor:
    q, k, v = model.q(x), model.k(x), model.v(x)
    scores = q @ k.mT / math.sqrt(WIDTH)
    weights = scores.softmax(-1)
    mixed = share_linear(model.out, weights @ v, relevance)
    to_weights, to_v = share_product(weights, v, mixed)
    to_scores = scores * (to_weights - weights * to_weights.sum(-1, keepdim=True))
    to_q, to_k = share_product(q, k.mT, to_scores)
    pairs = ((model.q, to_q), (model.k, to_k.mT), (model.v, to_v))
    return sum(share_linear(linear, x, one) for linear, one in pairs)


def share_feed(model: Small, x: Tensor, relevance: Tensor) -> Tensor:
    up = model.up(x)
    return share_linear(model.up, x, share_linear(model.down, F.gelu(up), relevance))


@torch.no_grad()
def compute_by_hand(model: Small, x: Tensor, target: int, gamma: float) -> Tensor:
    attended = model.attend(x)
    middle = x if model.parallel else x + attended
    fed = model.feed(middle)
    last = attended + fed + x if model.parallel else middle + fed
    relevance = torch.zeros(TOKENS, 3, dtype=x.dtype)
    relevance[0, target] = model.head(last)[0, target]
    relevance = share_linear(model.head, last, relevance)
    if model.parallel:
        to_x, to_attended, to_fed = share_skip([x, attended, fed], relevance, gamma)
        to_x = to_x + share_feed(model, x, to_fed)
    else:
        to_middle, to_fed = share_skip([middle, fed], relevance, gamma)
        to_middle = to_middle + share_feed(model, middle, to_fed)
        to_x, to_attended = share_skip([x, attended], to_middle, gamma)
    return (to_x + share_attention(model, x, to_attended)).sum(-1)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 0.25])
def test_the_rules(parallel, gamma):
    model = Small(parallel).double()
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    explain = Explainer(model).explain
    result = explain({"inputs_embeds": x}, classes=[0, 2], method="reslrp", gamma=gamma)
    for column, target in enumerate((0, 2)):
        expected = compute_by_hand(model, x[0], target, gamma)
        assert (result.scores[0, column] - expected).abs().max() < 1e-10 * expected.abs().max()


def test_gamma_zero_is_attnlrp():
    model, x = Small(parallel=True).double(), torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    explain = Explainer(model).explain
    ours, other = (
        explain({"inputs_embeds": x}, 1, method=name, **options).scores
        for name, options in (("reslrp", {"gamma": 0}), ("attnlrp", {}))
    )
    assert torch.equal(ours, other)


def test_a_negative_gamma_is_refused():
    with pytest.raises(WhenceError, match=r"^gamma=-1.0 must not be negative\.$"):
        Explainer(Small(parallel=False)).explain(
            {"inputs_embeds": torch.randn(1, TOKENS, WIDTH)}, method="reslrp", gamma=-1.0
        )


@pytest.mark.parametrize("parallel", [False, True])
def test_further_passes_go_by_the_same_rule(parallel):
    # They are read by autograd, and the recorded pass by whence.
    model = Small(parallel).double()
    inputs = {"inputs_embeds": torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)}
    explain = Explainer(model).explain
    asked = {"classes": [0, 2], "gradients": "residual"}
    once = explain(inputs, method="gradient", **asked).scores
    again = explain(inputs, method="smoothgrad", samples=1, noise=0.0, **asked).scores
    balanced = explain(inputs, method="gradient", classes=[0, 2], gradients="balanced").scores
    assert torch.allclose(again, once, rtol=1e-10)
    assert not torch.allclose(balanced, once, rtol=1e-2)
