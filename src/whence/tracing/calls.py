"""Torch calls: their names, and which of them only move numbers, pass relevance, or add up.

PyTorch has many ways to write the same thing: ``a @ b``, ``torch.bmm``, ``torch.einsum``; a fused
call or its parts; in place or not. A call is recognised by its name, so that ``torch.add``,
``Tensor.add`` and ``+`` are one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whence._util.torch_internals import (
    AttributeGetter,
    attribute_name,
    flatten_tree,
    unflatten_tree,
)
from whence.tracing.ops.base import is_traced

# Calls that only move numbers about, or choose some: their ordinary backward routes relevance like
# gradients. A logsumexp is a soft maximum: its backward divides by softmax, which keeps the sum.
ROUTING = frozenset(
    """
    T mT H mH t adjoint view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze
    permute transpose swapaxes swapdims movedim moveaxis contiguous clone expand expand_as
    broadcast_to broadcast_tensors atleast_1d atleast_2d atleast_3d repeat tile repeat_interleave
    cat concat concatenate stack hstack vstack dstack row_stack column_stack block_diag
    split split_with_sizes chunk tensor_split hsplit vsplit dsplit unsafe_chunk unsafe_split
    unbind __getitem__ __setitem__ select narrow index_select gather take take_along_dim
    masked_select index_copy index_fill select_scatter slice_scatter diagonal_scatter
    masked_fill masked_scatter topk sort msort kthvalue median nanmedian mode where tril triu
    diag diagonal diag_embed diagflat as_strided roll flip fliplr flipud rot90 pad constant_pad_nd
    unfold pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle to type type_as
    float double half bfloat16 cpu cuda alias max amax min amin aminmax maximum minimum fmax fmin
    cummax cummin logsumexp logaddexp max_pool1d max_pool2d max_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
    adaptive_max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d
    positive real imag complex resolve_conj view_as_real view_as_complex
    """.split()
)
# Functions of one tensor, element by element, and normalisations: relevance passes unchanged.
PASSING = frozenset(
    """
    softmax log_softmax softmin gelu relu relu6 silu mish elu selu celu leaky_relu rrelu
    hardswish hardsigmoid hardtanh hardshrink softshrink tanhshrink threshold softplus softsign
    logsigmoid log_sigmoid sigmoid special_expit expit tanh erf erfc erfinv exp exp2 expm1 log log2
    log10 log1p sqrt rsqrt square abs absolute neg negative reciprocal sin cos tan asin arcsin acos
    arccos sinh cosh asinh arcsinh acosh arccosh atanh arctanh atan arctan sinc special_sinc clamp
    clamp_min clamp_max clip pow __rpow__ float_power nan_to_num __rdiv__ __rtruediv__ prelu
    logit round floor ceil trunc fix frac sign sgn conj layer_norm rms_norm group_norm batch_norm
    instance_norm normalize local_response_norm
    """.split()
)
SUMMING = frozenset(
    """
    sum mean nansum nanmean cumsum trace fold avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d
    """.split()
)
ELEMENT_WISE = frozenset(
    """
    gelu relu relu6 silu mish elu selu celu leaky_relu hardswish hardsigmoid hardtanh softplus
    softsign logsigmoid sigmoid tanh erf exp abs neg mul multiply div divide true_divide
    """.split()
)
MIXING = frozenset(
    """
    softmax log_softmax softmin layer_norm rms_norm group_norm instance_norm normalize
    local_response_norm
    """.split()
)
"""Of the functions that pass relevance, those in which elements meet others."""

DROPOUT = frozenset(
    """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout
    """.split()
)


_CONTAINERS = (list, dict, tuple)


def name_of(function: Callable[..., Any] | str) -> str:
    """The name by which a torch function is recognised."""
    if isinstance(function, str):
        return function
    if isinstance(function, AttributeGetter):
        return attribute_name(function)
    name: str = getattr(function, "__name__", str(function))
    return name.split(".")[0]


@dataclass(slots=True)
class TorchCall:
    """A torch call with at least one argument that depends on the model's input."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Make the call."""
        return self.function(*self.args, **self.kwargs)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, however it was given."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def as_function(self) -> tuple[Callable[..., Any], list[Tensor]]:
        """The call as a function of the tensors that depend on the input, and those tensors."""
        simple = self._as_function_of_first()
        if simple is not None:
            return simple
        leaves, tree = flatten_tree((self.args, self.kwargs))
        positions = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]
        inputs = [leaves[i] for i in positions]
        for i in positions:
            leaves[i] = None  # the function outlives the call, and must not keep its graph
        called = self.function

        def function(*values: Tensor) -> Any:
            filled = list(leaves)
            for i, value in zip(positions, values, strict=True):
                filled[i] = value
            args, kwargs = unflatten_tree(filled, tree)
            return called(*args, **kwargs)

        return function, inputs

    def _as_function_of_first(self) -> tuple[Callable[..., Any], list[Tensor]] | None:
        """The same for nearly all calls, quickly; None where other arguments may matter, too."""
        if not self.args or not is_traced(self.args[0]):
            return None
        others = (*self.args[1:], *self.kwargs.values())
        if any(isinstance(v, _CONTAINERS) or is_traced(v) for v in others):
            shapes = all(isinstance(v, int) for o in others if type(o) in (list, tuple) for v in o)
            if not shapes or any(isinstance(v, dict) or is_traced(v) for v in others):
                return None
        called, rest, kwargs = self.function, self.args[1:], self.kwargs
        return lambda x: called(x, *rest, **kwargs), [self.args[0]]
