"""Fourier transforms, as products with matrices of cosines and sines."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.tracing.calls import TorchCall
from whence.tracing.recording import Recording


def record_fourier(recording: Recording, call: TorchCall) -> Any:
    """Record a complex transform along some dimensions; one that changes lengths is refused."""
    x, size = call.argument(0, "input"), call.argument(1, "n", call.kwargs.get("s"))
    if size is not None:
        return recording.refuse(call.run(), call.name)
    dims = call.argument(2, "dim")
    if dims is None:
        dims = {"t": (-1,), "2": (-2, -1), "n": range(x.dim())}[call.name[-1]]
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    inverse, norm = "ifft" in call.name, call.argument(3, "norm") or "backward"
    with recording.active():
        real, imaginary = (x.real, x.imag) if x.is_complex() else (x, None)
        for dim in dims:
            cosines, sines = _make_matrices(real, dim, inverse, norm)
            first, second = _multiply(real, cosines, dim), _multiply(real, sines, dim)
            if imaginary is None:
                real, imaginary = first, -second
                continue
            third, fourth = _multiply(imaginary, cosines, dim), _multiply(imaginary, sines, dim)
            real, imaginary = first + fourth, third - second
        return torch.complex(real, torch.zeros_like(real) if imaginary is None else imaginary)


def _make_matrices(x: Tensor, dim: int, inverse: bool, norm: str) -> tuple[Tensor, Tensor]:
    """The cosines and sines of all angles, with the factor of the norm."""
    count = x.shape[dim]
    numbers = torch.arange(count, device=x.device)
    angles = (numbers[:, None] * numbers % count).to(torch.float64) * (2 * math.pi / count)
    power = {"ortho": 0.5, "backward": float(inverse), "forward": float(not inverse)}[norm]
    factor = count**-power
    cosines, sines = angles.cos() * factor, angles.sin() * (-factor if inverse else factor)
    return cosines.to(x.dtype), sines.to(x.dtype)


def _multiply(x: Tensor, matrix: Tensor, dim: int) -> Tensor:
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)
