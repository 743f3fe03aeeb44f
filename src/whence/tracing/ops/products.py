"""Matrix products, and the precision that they are computed in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from whence.errors import WhenceError

Precision = Literal["tf32", "bfloat16"]


class _Types(threading.local):
    """The type in which this thread computes products, if that is not the type of the factors."""

    dtype: torch.dtype | None = None


_types = _Types()


class _Switch:
    """Torch's own switch for TF32, which all threads share: the last one out puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = ""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Let products of float32 be computed in TF32."""
        with self._lock:
            if self._users == 0:
                self._before = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("high")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    torch.set_float32_matmul_precision(self._before)


_switch = _Switch()


def check_precision(precision: Precision | None) -> None:
    """Refuse a precision that there is not.

    Raises:
        WhenceError: There is none of that name.
    """
    if precision is not None and precision not in get_args(Precision):
        named = " or ".join(f"'{name}'" for name in get_args(Precision))
        raise WhenceError(
            f"precision is {named}, or None for that of the weights, not {precision!r}."
        )


@contextmanager
def products_in(precision: Precision | None) -> Iterator[None]:
    """Have matrix products computed in fewer bits; all else stays as it is."""
    if precision == "tf32":
        with _switch.on():
            yield
        return
    before, _types.dtype = _types.dtype, torch.bfloat16 if precision else None
    try:
        yield
    finally:
        _types.dtype = before


def are_coarse() -> bool:
    """Whether products are computed in a type of fewer bits than their factors have."""
    return _types.dtype is not None


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of two factors, in the type that products are computed in."""
    dtype = _types.dtype
    return a @ b if dtype is None else (a.to(dtype) @ b.to(dtype)).to(a.dtype)
