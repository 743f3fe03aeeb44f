"""Share explanations among protocols that judge the same method on the same inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.explanation import Explanation
from whence.methods import MethodSpecification
from whence.models import LoadedModel

_MOST_BYTES = 2 * 1024**3
# Odd numbers without a pattern: two independent sums tell batches of numbers apart.
_FACTORS = (-7046029254386353131, -4658895280553007687)
_VIEWS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Key: TypeAlias = tuple[object, ...]


class _ExplanationCache:
    """Explanations of batches, by model, method and the numbers of the inputs."""

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[nn.Module, dict[Key, Explanation]] = WeakKeyDictionary()
        self._bytes = 0

    def look_up(
        self, model: nn.Module, key: Key, compute: Callable[[], Explanation]
    ) -> Explanation:
        """The explanation that is kept, or else a new one, which is kept while there is room."""
        of_model = self._found.setdefault(model, {})
        if key not in of_model:
            explanation = compute()
            size = explanation.scores.nbytes + explanation.logits.nbytes
            if self._bytes + size > _MOST_BYTES:
                return explanation
            self._bytes += size
            of_model[key] = explanation
        return copy.copy(of_model[key])


_cache: ContextVar[_ExplanationCache | None] = ContextVar("shared explanations", default=None)


@contextmanager
def share_explanations() -> Iterator[None]:
    """Keep explanations of predicted classes in memory while the block runs, for all protocols.

    Batches are shared as a whole, so protocols have to be run with the same samples and the same
    size of batches. An inner block shares those of the outer one. Models must not change meanwhile.
    """
    if _cache.get() is not None:
        yield
        return
    token = _cache.set(_ExplanationCache())
    try:
        yield
    finally:
        _cache.reset(token)


def look_up_explanation(
    loaded: LoadedModel,
    inputs: Tensor | Mapping[str, Tensor],
    method: MethodSpecification,
    compute: Callable[[], Explanation],
) -> Explanation:
    """Compute an explanation of the predicted class, or take the shared one of the same inputs."""
    cache = _cache.get()
    if cache is None:
        return compute()
    tensors = {"": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    key: Key = (
        loaded.precision,
        method.name,
        method.rules,
        tuple(sorted((name, repr(value)) for name, value in method.options.items())),
        tuple((name, hash_numbers(value)) for name, value in tensors.items()),
    )
    return cache.look_up(loaded.model, key, compute)


@torch.no_grad()
def hash_numbers(tensor: Tensor) -> tuple[object, ...]:
    """Hash a tensor on its device: type, shape, and two sums over its bits of 64 bits each."""
    bits = tensor.detach().contiguous().view(_VIEWS[tensor.element_size()]).flatten().long()
    places = torch.arange(1, bits.numel() + 1, device=bits.device)
    sums = []
    for factor in _FACTORS:
        weights = places * factor
        weights = (weights ^ (weights >> 29)) * factor
        sums.append((bits * (weights | 1)).sum())
    first, second = torch.stack(sums).tolist()
    return str(tensor.dtype), tuple(tensor.shape), first, second
