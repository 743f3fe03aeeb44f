"""Products that oneDNN is quicker at: a private part of torch, as in `torch_internals`.

Torch leaves products of float32 on a CPU to MKL, which uses the widest registers of a processor
only if Intel made it. On others, oneDNN takes about half of the time. Results differ by rounding.
``torch.backends.mkldnn.flags(enabled=False)`` switches it off, as all of oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence._util.cpus import read_cpu_vendor
from whence._util.torch_internals import is_any_autocast_enabled

# The operator, and its overload in graphs; None where torch was built without oneDNN.
_linear_pointwise: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
ONEDNN_PRODUCT: Any = getattr(_linear_pointwise, "default", None)
# Smaller products take no longer by MKL. For each new shape, oneDNN writes a program of its own.
_FEW_PRODUCTS = 2**22
_PLAIN_TYPES = (Tensor, nn.Parameter)


@cache
def is_quicker_by_onednn() -> bool:
    """Tell whether oneDNN uses registers of this processor that MKL leaves alone."""
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_mkl or not has_onednn or _linear_pointwise is None:
        return False
    has_wide_registers = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_wide_registers and read_cpu_vendor() not in ("", "GenuineIntel")


def has_quick_float16() -> bool:
    """Tell whether the processor multiplies float16 several times as quickly as float32: by AMX."""
    is_there = getattr(torch.cpu, "_is_amx_fp16_supported", None)  # later releases have it
    return is_there is not None and bool(is_there()) and torch._C._get_mkldnn_enabled()


def has_quick_shape(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Tell whether oneDNN is quicker at a product of factors of these shapes and types."""
    if x.dtype != torch.float32 or weight.dim() != 2 or x.dim() < 2:
        return False
    is_large = x.numel() * weight.shape[0] >= _FEW_PRODUCTS
    return is_large and (bias is None or bias.dim() == 1)


def can_multiply_quickly(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Tell whether oneDNN multiplies quicker than torch's own call, and as rightly."""
    if not x.is_cpu or not is_quicker_by_onednn() or not has_quick_shape(x, weight, bias):
        return False
    if bias is not None and not bias.is_contiguous():
        return False  # oneDNN would read it as if it were
    factors = (x, weight) if bias is None else (x, weight, bias)
    if is_any_autocast_enabled() or not torch._C._get_mkldnn_enabled():
        return False
    needs_graph = torch.is_grad_enabled() and any(one.requires_grad for one in factors)
    return not needs_graph and all(map(_is_plain, factors))


def _is_plain(factor: Tensor) -> bool:
    """Whether a factor is numbers in the memory of this machine, and not of a transform."""
    is_dense = factor.dtype == torch.float32 and factor.layout == torch.strided
    is_batched = torch._C._functorch.is_batchedtensor(factor)
    return type(factor) in _PLAIN_TYPES and is_dense and not is_batched


def multiply_quickly(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W^T + bias by oneDNN, of factors that `can_multiply_quickly` agrees to."""
    product: Tensor = _linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _define_operator() -> Any:
    """Define the same as an operator of whence's own, which torch's compiler calls as it is.

    It refuses torch's own operator unless weights are constants.
    """
    library: Any = torch.library.Library("whence", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("multiply_quickly(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")
    library.impl("multiply_quickly", multiply_quickly, "CPU")
    library.impl("multiply_quickly", F.linear, "Meta")
    return library, torch.ops.whence.multiply_quickly.default


_library, QUICK_PRODUCT = _define_operator()  # the operator is there as long as the library is


def quick_products(device: torch.device | str) -> AbstractContextManager[object]:
    """Let models on a device multiply by the library that is quicker, where they need no gradient.

    Only calls of `torch.nn.functional.linear` are seen, as those of ``nn.Linear`` are.
    """
    is_useful = torch.device(device).type == "cpu" and is_quicker_by_onednn()
    return _QuickProducts() if is_useful else nullcontext()


class _QuickProducts(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and not kwargs and can_multiply_quickly(*args):
            return multiply_quickly(*args)
        return func(*args, **(kwargs or {}))
