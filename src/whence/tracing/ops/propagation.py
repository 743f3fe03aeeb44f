"""Values that pass softmax attention backward, some queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whence.tracing.ops.base import Operation, Values
from whence.tracing.ops.products import MatMul
from whence.tracing.ops.softmax import Softmax

Read = Callable[[Operation, Tensor], Values]
"""How values pass an operation backward: given the one of its output, those of its inputs."""


def split_classes(value: Tensor, dims: int) -> list[Tensor]:
    """The value of each class at a tensor of so many dimensions."""
    return list(value) if value.dim() > dims else [value]


class Propagation:
    """Values that pass attention backward, added up over chunks of queries.

    Args:
        inputs: The queries, keys and values.
        output: The values at the output; there may be classes before them.
        read: How values pass an operation.
    """

    def __init__(self, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor, read: Read) -> None:
        self._output, self._read, self._dims = output, read, inputs[0].dim()
        self._every = split_classes(output, self._dims)
        self._totals = [[_Total(x) for x in inputs] for _ in self._every]
        self._passes_softmax = True

    def is_of(self, output: Tensor, read: Read) -> bool:
        """Whether these are the values that come of some at the output."""
        return read == self._read and is_same(self._output, output)

    def add(
        self,
        rows: slice,
        seen: slice,
        operations: tuple[MatMul, Softmax, MatMul],
        reads_maps: bool = False,
    ) -> list[Tensor]:
        """Propagate the values of some queries.

        Args:
            rows: The queries.
            seen: The keys that they may attend to.
            operations: Their scores, softmax and product.
            reads_maps: Whether values at maps are wanted.

        Returns:
            For each class, the values at the maps, if they are wanted.
        """
        scores, softmax, product = operations
        at_maps: list[Tensor] = []
        for one, totals in zip(self._every, self._totals, strict=True):
            product.wanted = () if self._passes_softmax or reads_maps else (False, True)
            to_map, to_values = self._read(product, one[..., rows, :])
            totals[2].add(to_values, seen)
            if reads_maps:
                if to_map is None:
                    raise RuntimeError("A rule gave no value for an attention map.")
                at_maps.append(to_map)
            (to_scores,) = (None,) if to_map is None else self._read(softmax, to_map)
            self._passes_softmax = to_scores is not None
            del to_map
            if to_scores is not None:
                to_queries, to_keys = self._read(scores, to_scores)
                totals[0].add(to_queries, rows)
                totals[1].add(None if to_keys is None else to_keys.mT, seen)
        return at_maps

    def find_values(self, output: Tensor) -> Values:
        """The values of queries, keys and values, with classes before them if the output has."""
        found = [[total.value for total in totals] for totals in self._totals]
        if output.dim() == self._dims:
            return tuple(found[0])
        return tuple(_stack(values) for values in zip(*found, strict=True))


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same memory, perhaps with one target as a dimension before."""
    same = a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.numel() == b.numel()
    return same and a.shape[-4:] == b.shape[-4:] and a.stride()[-4:] == b.stride()[-4:]


class _Total:
    """A value that is added up over chunks of queries; in float32 at least, since they are many."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._sum: Tensor | None = None

    def add(self, part: Tensor | None, rows: slice) -> None:
        """Add a part that belongs to some rows."""
        if part is None:
            return
        if self._sum is None:
            dtype = torch.promote_types(self._like.dtype, torch.float32)
            self._sum = torch.zeros(self._like.shape, dtype=dtype, device=self._like.device)
        self._sum[..., rows, :].add_(part)

    @property
    def value(self) -> Tensor | None:
        """The sum; None if nothing was added."""
        return None if self._sum is None else self._sum.to(self._like.dtype)


def _stack(values: Sequence[Tensor | None]) -> Tensor | None:
    found = [value for value in values if value is not None]
    return torch.stack(found) if len(found) == len(values) else None
