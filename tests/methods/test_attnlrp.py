"""AttnLRP against its rules, propagated by hand; benchmarks/ compares with the authors' library."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from whence import Explainer

WIDTH, TOKENS = 6, 4


class Small(nn.Module):
    """One attention with a skip connection, LayerNorm, GELU, and the first token's classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.head = nn.Linear(WIDTH, 9), nn.Linear(9, 3)

    def forward(self, inputs_embeds):
        x = inputs_embeds
        scores = self.q(x) @ self.k(x).mT / math.sqrt(WIDTH)
        x = x + self.out(scores.softmax(-1) @ self.v(x))
        return self.head(F.gelu(self.up(self.norm(x))))[:, 0]


def apply_epsilon_rule(linear: nn.Linear, x, relevance):
    """R_j = sum_i x_j w_ij / y_i R_i, the bias keeping its part."""
    products = x[..., None, :] * linear.weight
    return (products * (relevance / linear(x))[..., None]).sum(-2)


def split_product(a, b, relevance):
    """Half of a product's relevance to each factor."""
    products = a[:, None] * b.mT[None]  # (rows, columns, inner)
    shares = products * (relevance / (a @ b) / 2)[..., None]
    return shares.sum(1), shares.sum(0).mT


def compute_by_hand(model: Small, x, target: int):
    """Relevance of one sequence, operation by operation."""
    q, k, v = model.q(x), model.k(x), model.v(x)
    products = q @ k.mT
    scores = products / math.sqrt(WIDTH)
    weights = scores.softmax(-1)
    mixed = weights @ v
    added = model.out(mixed)
    stream = x + added
    normed = model.norm(stream)
    up = model.up(normed)
    active = F.gelu(up)
    relevance = torch.zeros(TOKENS, 3, dtype=x.dtype)
    relevance[0, target] = model.head(active)[0, target]
    r = apply_epsilon_rule(model.head, active, relevance)
    r = apply_epsilon_rule(model.up, normed, r)  # unchanged by the activation
    # (x - mean) is linear and gets the epsilon rule; scale and shift are single inputs.
    spread = stream.var(-1, unbiased=False, keepdim=True).add(model.norm.eps).sqrt()
    centring = torch.eye(WIDTH, dtype=x.dtype) - 1 / WIDTH
    scaled = r / normed * model.norm.weight / spread
    r = stream * (scaled @ centring)
    skip, layer = x * (r / stream), added * (r / stream)
    layer = apply_epsilon_rule(model.out, mixed, layer)
    to_weights, to_v = split_product(weights, v, layer)
    to_scores = scores * (to_weights - weights * to_weights.sum(-1, keepdim=True))
    to_q, to_k = split_product(q, k.mT, to_scores)
    total = skip + apply_epsilon_rule(model.v, x, to_v)
    total = total + apply_epsilon_rule(model.q, x, to_q) + apply_epsilon_rule(model.k, x, to_k.mT)
    return total.sum(-1)


def test_the_rules():
    model = Small().double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    result = Explainer(model).explain({"inputs_embeds": x}, classes=[0, 2], method="attnlrp")
    for i in range(2):
        for column, target in enumerate((0, 2)):
            with torch.no_grad():
                expected = compute_by_hand(model, x[i], target)
            assert torch.allclose(result.scores[i, column], expected, rtol=1e-8)
