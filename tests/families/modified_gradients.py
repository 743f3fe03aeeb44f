"""Balanced gradients and AttnLRP by autograd itself: a model's calls with some gradients held."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PRODUCTS = ("matmul", "bmm", "baddbmm", "mul", "mul_")
GATED = ("silu", "gelu", "relu", "tanh")


@contextlib.contextmanager
def modify_gradients(model: nn.Module, rules: str, tokens: int) -> Iterator[None]:
    """Hold what the rule set "attnlrp" or "balanced" holds, while the model runs.

    Args:
        model: A model whose parameters need no gradients.
        rules: The rule set.
        tokens: How many tokens there are, by which the softmax of attention is known.
    """
    changed = {module: _hold_module(module) for module in model.modules()}
    for module, forward in changed.items():
        if forward is not None:
            module.forward = forward
    try:
        with _HoldCalls(rules, tokens):
            yield
    finally:
        for module, forward in changed.items():
            if forward is not None:
                del module.forward


class _HoldCalls(TorchFunctionMode):
    """Halves gradients of products, and holds gates, denominators and, if balanced, attention."""

    def __init__(self, rules: str, tokens: int) -> None:
        super().__init__()
        self._rules, self._tokens = rules, tokens
        self._sigmoids: list[tuple[Tensor, Tensor]] = []  # arguments and results

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        given = (*args, *kwargs.values())
        factors = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        if name in ("div", "div_", "__truediv__", "__itruediv__") and len(factors) == 2:
            is_softmax = torch.allclose(args[1], args[0].sum(-1, keepdim=True))
            if self._rules != "attnlrp" or not is_softmax:
                return func(args[0], args[1].detach(), **kwargs)
        result = func(*args, **kwargs)
        if name == "sigmoid" and factors:
            self._sigmoids.append((factors[0], result))
        if name in PRODUCTS and len(factors) == 2:
            for argument, gate in self._sigmoids:  # x * sigmoid(a x), a SiLU by hand
                for x, other in (factors, factors[::-1]):
                    if other is gate and _is_multiple(argument, x):
                        return x * gate.detach()
            # With the softmax held, all of attention's gradient is the values' own; and no head
            # is as wide as the text is long.
            of_maps = any(x.shape[-2:] == (self._tokens, self._tokens) for x in factors)
            return result if self._rules == "balanced" and of_maps else _halve(result)
        if name in GATED and factors:
            return _hold_factor(factors[0], result)
        if name == "softmax" and self._rules == "balanced":
            of_attention = result.dim() > 2 and result.shape[-2] == self._tokens
            return result.detach().requires_grad_() if of_attention else result
        return result


def _is_multiple(a: Tensor, b: Tensor) -> bool:
    """Whether a tensor is another one times a number."""
    with torch._C.DisableTorchFunction():
        ratio = (a * b).sum() / (b * b).sum()
        return a.shape == b.shape and torch.allclose(a, ratio * b)


def _hold_factor(x: Tensor, y: Tensor) -> Tensor:
    """A function y of x as x times a constant; where x is zero, any constant will do."""
    return x * (y / x).detach().nan_to_num()


def _halve(result: Tensor) -> Tensor:
    return result.detach() + (result - result.detach()) / 2


def _hold_module(module: nn.Module) -> Callable[..., Tensor] | None:
    """The forward of an activation or a norm with its gate or spread held; None for others."""
    name, package = type(module).__name__.lower(), type(module).__module__
    if package == "transformers.activations" or name.endswith(("gelu", "rmsnorm", "l2norm")):
        return partial(_hold_ratio, module.forward, centred=False)
    if "layernorm" in name:
        return partial(_hold_ratio, module.forward, centred=True)
    return None


def _hold_ratio(forward: Callable[..., Tensor], x: Tensor, centred: bool) -> Tensor:
    """A function of x, or of x less its mean, as that times the ratio of both, held constant."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        y, bias = forward(x), forward(torch.zeros_like(x))
    x = x - x.mean(-1, keepdim=True) if centred else x
    return _hold_factor(x, y - bias) + bias
