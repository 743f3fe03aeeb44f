"""Operations that random models are written in: plain torch calls, or a tape's.

Without a tape, each is an ordinary torch call in one of several spellings: that is what whence
sees. Under a tape, the same forward pass computes with the rules of the oracle, and notes what it
knows: the attention maps, what enters each block, the input.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.fuzz.rules import GATED, OTHERS, RULES, Gradient, ResLrp


@dataclass
class Site:
    """One attention, as its builder knows it."""

    maps: Tensor  # (batch, heads, queries, keys)
    entering: Tensor  # (batch, tokens, width), what enters its block; or the tokens first
    pools: bool = False  # whether its queries are no tokens of the sequence
    tokens_first: bool = False
    stream: str = "tokens"  # or "queries" among themselves, or "across" from queries to tokens


@dataclass
class Tape:
    """What the oracle notes of a forward pass."""

    rules: Gradient
    sites: list[Site] = field(default_factory=list)
    inputs: Tensor | None = None


class _Current(threading.local):
    tape: Tape | None = None


_current = _Current()


def current() -> Tape | None:
    return _current.tape


@contextmanager
def record(rules: str) -> Iterator[Tape]:
    """Have the operations of this thread recorded, with a set of rules."""
    _current.tape = Tape(RULES[rules])
    try:
        yield _current.tape
    finally:
        _current.tape = None


def begin(value: Tensor) -> Tensor:
    """Where the dependence on the input begins: pixels or embeddings."""
    tape = current()
    if tape is None:
        return value
    tape.inputs = value.detach().clone().requires_grad_()
    return tape.inputs


def linear(layer: nn.Linear, x: Tensor, how: str = "module") -> Tensor:
    tape = current()
    if tape is not None:
        return tape.rules.linear(x, layer.weight, layer.bias)
    if how == "function":
        return F.linear(x, layer.weight, layer.bias)
    if how == "matmul":
        y = x @ layer.weight.T
        return y if layer.bias is None else y + layer.bias
    if how == "einsum":
        y = torch.einsum("...i,oi->...o", x, layer.weight)
        return y if layer.bias is None else y + layer.bias
    if how == "addmm" and layer.bias is not None:
        flat = torch.addmm(layer.bias, x.reshape(-1, x.shape[-1]), layer.weight.t())
        return flat.view(*x.shape[:-1], -1)
    return layer(x)


def cut_patches(convolution: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Patches by a convolution without overlap: (batch, patches, width)."""
    tape = current()
    if tape is None:
        return convolution(x).flatten(2).transpose(1, 2)
    for dim, size in enumerate(convolution.kernel_size, 2):
        x = x.unfold(dim, size, size)
    dims = len(convolution.kernel_size)
    x = x.movedim(1, 1 + dims).flatten(1 + dims).flatten(1, dims)
    return tape.rules.linear(x, convolution.weight.flatten(1), convolution.bias)


LINEARS = ("module", "function", "matmul", "einsum", "addmm")


class HandRMSNorm(nn.Module):
    """RMSNorm as models write it themselves."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        spread = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(spread + self.eps))


class EuclideanNorm(nn.Module):
    """RMSNorm as a division by the length of a vector."""

    eps = 0.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x / x.norm(dim=-1, keepdim=True)) * math.sqrt(x.shape[-1])


def norm(module: nn.Module, x: Tensor) -> Tensor:
    tape = current()
    if tape is None or isinstance(module, nn.Identity):
        return module(x)
    bias = getattr(module, "bias", None)
    eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
    return tape.rules.norm(x, isinstance(module, nn.LayerNorm), eps, module.weight, bias)


def function(x: Tensor, name: str) -> Tensor:
    tape = current()
    return {**GATED, **OTHERS}[name](x) if tape is None else tape.rules.function(x, name)


def scale(x: Tensor, factor: Tensor | float) -> Tensor:
    tape = current()
    return x * factor if tape is None else tape.rules.scale(x, factor)


def product(a: Tensor, b: Tensor) -> Tensor:
    tape = current()
    return a * b if tape is None else tape.rules.product(a, b)


def quotient(a: Tensor, b: Tensor) -> Tensor:
    tape = current()
    return a / b if tape is None else tape.rules.quotient(a, b)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    tape = current()
    return a @ b if tape is None else tape.rules.matmul(a, b)


def add(a: Tensor, b: Tensor, how: str = "operator") -> Tensor:
    tape = current()
    if tape is not None:
        return tape.rules.add(a, b)
    if how == "method":
        return a.add(b)
    if how == "function":
        return torch.add(a, b)
    return a + b


def add_branch(x: Tensor, branch: Tensor) -> Tensor:
    """A skip connection, and its one branch."""
    tape = current()
    if tape is not None and isinstance(tape.rules, ResLrp):
        return tape.rules.add_skip([x, branch], [0, 1])
    return add(x, branch)


def total(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    tape = current()
    return x.sum(dim, keepdim=keepdim) if tape is None else tape.rules.sum(x, dim, keepdim)


def mean(x: Tensor, dim: int) -> Tensor:
    tape = current()
    if tape is None:
        return x.mean(dim)
    return tape.rules.scale(tape.rules.sum(x, dim), 1 / x.shape[dim])


# Sums of several terms ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Addition:
    """How the terms of a residual addition are added: in what order, association and spelling."""

    order: tuple[int, ...]  # of the terms; the first is the skip connection
    how: str  # left, right, stack, python, in_place, alpha, method, function

    def __call__(self, terms: list[Tensor], kinds: list[int]) -> Tensor:
        """The sum; kinds tell which terms of a skip connection count as one, and are empty else."""
        order = [i for i in self.order if i < len(terms)]
        terms = [terms[i] for i in order]
        if len(terms) == 1:
            return terms[0]
        tape = current()
        if tape is not None and isinstance(tape.rules, ResLrp) and kinds:
            factors = [0.75 if n and self.how == "alpha" else 1.0 for n in range(len(terms))]
            scaled = [tape.rules.scale(*one) for one in zip(terms, factors, strict=True)]
            return tape.rules.add_skip(scaled, [kinds[i] for i in order])
        if self.how == "stack":
            return total(torch.stack(terms), 0)
        if self.how == "right":
            result = terms[-1]
            for term in reversed(terms[:-1]):
                result = add(term, result)
            return result
        if tape is None and self.how == "python":
            return sum(terms)
        if tape is None and self.how == "in_place":
            result = terms[0]
            for term in terms[1:]:
                result += term
            return result
        result = terms[0]
        for term in terms[1:]:
            if self.how == "alpha":
                result = _add_doubled_half(result, term)
            else:
                result = add(result, term, self.how)
        return result


ADDITIONS = ("left", "right", "stack", "python", "in_place", "alpha", "method", "function")


def _add_doubled_half(a: Tensor, b: Tensor) -> Tensor:
    tape = current()
    if tape is None:
        return torch.add(a, b, alpha=0.75)
    return tape.rules.add(a, tape.rules.scale(b, 0.75))


# Attention ----------------------------------------------------------------------------------------


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entering: Tensor,
    plain: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    added: Tensor | None = None,
    scaling: float | None = None,
    pools: bool = False,
    tokens_first: bool = False,
    stream: str = "tokens",
) -> Tensor:
    """Attention of (batch, heads, tokens, width), under a tape by the rules; else as spelled.

    ``added`` is what is added to the scores, masks among it; keys and values of fewer heads are
    repeated.
    """
    tape = current()
    if tape is None:
        return plain(q, k, v)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    score = tape.rules.multiply_constant if pools else tape.rules.matmul
    scores = score(q.detach() if pools else q, k.mT)
    scores = tape.rules.scale(scores, 1 / math.sqrt(q.shape[-1]) if scaling is None else scaling)
    maps = tape.rules.softmax(scores if added is None else scores + added)
    tape.sites.append(Site(maps, entering, pools, tokens_first, stream))
    return tape.rules.matmul(maps, v, attention=True)
