"""Products that oneDNN is quicker at: a private part of torch, as in `torch_internals`.

Torch leaves products of float32 on a CPU to MKL, which uses the widest registers of a processor
only if Intel made it. On others, oneDNN takes about half of the time. Results differ by rounding.
``torch.backends.mkldnn.flags(enabled=False)`` switches it off, as all of oneDNN, but for programs
that were compiled before.
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
from whence._util.torch_internals import is_any_autocast_enabled, is_forward_mode

# The operator, and its overload in graphs; None where torch was built without oneDNN.
_linear_pointwise: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
ONEDNN_PRODUCT: Any = getattr(_linear_pointwise, "default", None)
# Those who make processors whose wide registers MKL leaves alone, as Linux and Windows name them.
_VENDORS = ("AuthenticAMD", "HygonGenuine")
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
    return has_wide_registers and read_cpu_vendor() in _VENDORS


def has_quick_float16() -> bool:
    """Tell whether the processor multiplies float16 several times as quickly as float32: by AMX."""
    is_there = getattr(torch.cpu, "_is_amx_fp16_supported", None)  # later releases have it
    return is_there is not None and bool(is_there()) and torch._C._get_mkldnn_enabled()


def has_quick_form(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Tell whether oneDNN is quicker at factors of these shapes, strides and types, and right."""
    if x.dtype != torch.float32 or weight.dim() != 2 or x.dim() < 2:
        return False
    if x.shape[-1] != weight.shape[1] or x.numel() * weight.shape[0] < _FEW_PRODUCTS:
        return False
    (rows, columns), (down, right) = weight.shape, weight.stride()
    if down < columns * right and right < rows * down:
        return False  # numbers that are read for several places
    # It would read another bias as if it were contiguous, and for each column.
    return bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous())


def can_multiply_quickly(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Tell whether oneDNN multiplies quicker than torch's own call, and gives the same."""
    if not x.is_cpu or not is_quicker_by_onednn():
        return False
    factors = (x, weight) if bias is None else (x, weight, bias)
    if not all(map(_is_plain, factors)) or not has_quick_form(x, weight, bias):
        return False
    if is_any_autocast_enabled() or not torch._C._get_mkldnn_enabled() or is_forward_mode():
        return False
    return not (torch.is_grad_enabled() and any(one.requires_grad for one in factors))


def _is_plain(factor: Tensor) -> bool:
    """Whether a factor is numbers in the memory of this machine, and not of a transform."""
    if type(factor) not in _PLAIN_TYPES or not factor.is_cpu:
        return False
    is_dense = factor.dtype == torch.float32 and factor.layout == torch.strided
    return is_dense and not torch._C._functorch.is_functorch_wrapped_tensor(factor)


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


def use_quick_products(device: torch.device | str) -> AbstractContextManager[object]:
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
        if func is not F.linear or kwargs or torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        if can_multiply_quickly(*args):
            return multiply_quickly(*args)
        return func(*args)
