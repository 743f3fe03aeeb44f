"""How each torch call is recorded: one function for a call, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from whence.tracing import calls
from whence.tracing.calls import TorchCall
from whence.tracing.recorders import (
    arithmetic,
    attention,
    einsum,
    experts,
    fourier,
    functions,
    products,
    resampling,
    scatters,
)
from whence.tracing.recording import Recording

CallRecorder = Callable[[Recording, TorchCall], Any]

_BY_NAMES: tuple[tuple[CallRecorder, str | Iterable[str]], ...] = (
    (functions.record_routing, calls.ROUTING),
    (functions.record_passing, calls.PASSING),
    (functions.record_sum, calls.SUMMING),
    (functions.skip_dropout, calls.DROPOUT),
    (products.record_linear, "linear"),
    (products.record_bilinear, "bilinear"),
    (products.record_convolution, "conv1d conv2d conv3d convolution"),
    (products.record_convolution, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (products.record_matmul, "matmul mm bmm mv __matmul__ __rmatmul__ linalg_matmul"),
    (products.record_added_matmul, "addmm baddbmm addbmm addmv"),
    (experts.record_grouped_matmul, "_grouped_mm grouped_mm grouped_mm_fallback"),
    (einsum.record_einsum, "einsum"),
    (einsum.record_tensordot, "tensordot"),
    (einsum.record_vector_product, "outer ger dot vdot inner"),
    (arithmetic.record_add, "add sub subtract rsub __radd__ __rsub__"),
    (arithmetic.record_multiply, "mul multiply div divide true_divide __rmul__"),
    (arithmetic.record_negation, "neg negative"),
    (arithmetic.record_glu, "glu"),
    (arithmetic.record_added_product, "addcmul addcdiv"),
    (arithmetic.record_interpolation, "lerp"),
    (arithmetic.record_prod, "prod"),
    (arithmetic.record_diff, "diff"),
    (arithmetic.record_norm, "norm linalg_norm linalg_vector_norm"),
    (arithmetic.record_variance, "var std var_mean std_mean"),
    (arithmetic.record_cosine, "cosine_similarity"),
    (arithmetic.record_distance, "pairwise_distance"),
    (arithmetic.record_vecdot, "linalg_vecdot"),
    (scatters.record_index_add, "index_add"),
    (scatters.record_scatter, "scatter"),
    (scatters.record_scatter_add, "scatter_add"),
    (scatters.record_scatter_reduce, "scatter_reduce"),
    (scatters.record_index_put, "index_put"),
    (resampling.record_interpolate, "interpolate"),
    (resampling.record_grid_sample, "grid_sample"),
    (fourier.record_fourier, "fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn"),
    (attention.record_attention, "scaled_dot_product_attention"),
    (functions.run_body, "multi_head_attention_forward lp_pool1d lp_pool2d lp_pool3d"),
    (functions.run_body, "gumbel_softmax upsample upsample_nearest upsample_bilinear"),
)

RECORDERS: dict[str, CallRecorder] = {
    name: recorder
    for recorder, names in _BY_NAMES
    for name in (names.split() if isinstance(names, str) else names)
}
"""The function that records a call, by the call's name."""
