"""Torch calls: which of them are one operation, and what composite ones such as einsum consist of.

PyTorch has many ways to write the same thing: ``a @ b``, ``torch.bmm``, ``torch.einsum``; a fused
call or its parts; in place or not. A call is recognised by its name, so that ``torch.add``,
``Tensor.add`` and ``+`` are one.
"""

from __future__ import annotations

import math
import string
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence._util.torch_internals import (
    AttributeGetter,
    attribute_name,
    flatten_tree,
    skip_override_check,
    unflatten_tree,
    without_torch_function,
)
from whence.errors import WhenceError
from whence.tracing.ops.base import is_traced
from whence.tracing.ops.softmax import ChunkedAttention, Softmax, masked_softmax
from whence.tracing.recording import Recording

# Calls that only move numbers about: their ordinary backward routes relevance like gradients.
ROUTING = frozenset(
    """
    T mT H mH t view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze
    permute transpose swapaxes swapdims movedim moveaxis contiguous clone expand expand_as
    broadcast_to repeat tile repeat_interleave cat concat concatenate stack hstack vstack dstack
    split split_with_sizes chunk tensor_split unsafe_chunk unsafe_split unbind __getitem__
    __setitem__ select narrow index_select gather take_along_dim masked_select index_copy
    scatter masked_fill masked_scatter topk sort where tril triu diagonal roll flip fliplr flipud
    pad unfold pixel_shuffle pixel_unshuffle channel_shuffle to type type_as float double half
    bfloat16 cpu cuda alias max amax min amin maximum minimum max_pool1d max_pool2d max_pool3d
    adaptive_max_pool1d adaptive_max_pool2d positive view_as_real view_as_complex
    """.split()
)
# Functions of one tensor, element by element, and normalisations: relevance passes unchanged.
PASSING = frozenset(
    """
    softmax log_softmax softmin gelu relu relu6 silu mish elu selu celu leaky_relu rrelu
    hardswish hardsigmoid hardtanh hardshrink softshrink tanhshrink threshold softplus softsign
    logsigmoid log_sigmoid sigmoid tanh erf erfc exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
    square abs absolute neg negative reciprocal sin cos tan sinh cosh atan arctan clamp
    clamp_min clamp_max clip pow __rpow__ float_power nan_to_num __rdiv__ __rtruediv__ prelu
    logit round floor ceil layer_norm rms_norm group_norm batch_norm instance_norm normalize
    local_response_norm
    """.split()
)
SUMMING = frozenset(
    """
    sum mean avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d
    """.split()
)
ELEMENT_WISE = frozenset(
    """
    gelu relu relu6 silu mish elu selu celu leaky_relu hardswish hardsigmoid hardtanh softplus
    softsign logsigmoid sigmoid tanh erf exp abs neg mul multiply div divide true_divide
    """.split()
)
DROPOUT = frozenset(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split()
)

# Modules that compute one operation in many calls, by the name of their class: activations such as
# NewGELUActivation or QuickGELU, norms such as LlamaRMSNorm or a hand-written LayerNorm.
_NORM_SUFFIXES = ("rmsnorm", "layernorm")
_ACTIVATION_SUFFIXES = ("gelu", "geluactivation", "mish", "swish", "silu")
_PASSING_PACKAGES = ("transformers.activations", "timm.layers.activations")

# What users registered: module classes and names of torch functions, with their kinds.
registered_kinds: dict[type[nn.Module] | str, str] = {}


def register_operation(operation: type[nn.Module] | Callable[..., Any] | str, kind: str) -> None:
    """Treat a module class, a torch function or a function's name as one operation.

    Args:
        operation: A subclass of ``torch.nn.Module`` whose whole ``forward`` is the operation, or a
            function that torch dispatches (a custom operator, say), or such a function's name.
        kind: ``"pass"`` if relevance passes it unchanged (activations, norms), ``"sum"`` if it adds
            or averages its input, ``"product"`` if it multiplies its inputs, or a kind of your own
            for which a rule set has a rule.
    """
    if isinstance(operation, type) and not issubclass(operation, nn.Module):
        raise WhenceError(
            f"{operation.__name__} is neither a module class nor a function: whence cannot see its "
            f"calls. Register a subclass of torch.nn.Module or a function that torch dispatches."
        )
    registered_kinds[operation if isinstance(operation, type) else name_of(operation)] = kind


def find_module_kind(module: nn.Module) -> str | None:
    """The kind of operation that a module is as a whole, or None if its calls are recorded."""
    for base in type(module).__mro__:
        if base in registered_kinds:
            return registered_kinds[base]
    if type(module).__module__.startswith("torch."):
        return None
    # Subclasses of torch's own norms and activations call one torch function, seen as such; and
    # what has weight matrices or modules of its own does more than its name says.
    matrices = any(parameter.dim() > 1 for parameter in module.parameters())
    if isinstance(module, nn.LayerNorm | nn.GELU | nn.SiLU) or matrices or any(module.children()):
        return None
    is_norm = type(module).__name__.lower().endswith(_NORM_SUFFIXES)
    return "pass" if is_norm or _is_named_activation(module) else None


def _is_named_activation(module: nn.Module) -> bool:
    name, package = type(module).__name__.lower(), type(module).__module__
    return name.endswith(_ACTIVATION_SUFFIXES) or package.startswith(_PASSING_PACKAGES)


def find_mixed_dims(module: nn.Module) -> int | None:
    """How many of the last dimensions a module mixes, if that is known."""
    has_parameters = any(True for _ in module.parameters())
    return 0 if _is_named_activation(module) and not has_parameters else None


def name_of(function: Callable[..., Any] | str) -> str:
    """The name by which a torch function is recognised."""
    if isinstance(function, str):
        return function
    if isinstance(function, AttributeGetter):
        return attribute_name(function)
    name: str = getattr(function, "__name__", str(function))
    return name.split(".")[0]


@dataclass
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

    def as_function(self) -> tuple[Callable[..., Tensor], list[Tensor]]:
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

        def function(*values: Tensor) -> Tensor:
            filled = list(leaves)
            for i, value in zip(positions, values, strict=True):
                filled[i] = value
            args, kwargs = unflatten_tree(filled, tree)
            return _require_tensor(called, called(*args, **kwargs))

        return function, inputs

    def _as_function_of_first(self) -> tuple[Callable[..., Tensor], list[Tensor]] | None:
        """The same for nearly all calls, quickly; None where other arguments may matter, too."""
        others = (*self.args[1:], *self.kwargs.values())
        if not self.args or not is_traced(self.args[0]):
            return None
        if any(isinstance(v, list | dict | tuple) or is_traced(v) for v in others):
            shapes = all(isinstance(v, int) for o in others if type(o) in (list, tuple) for v in o)
            if not shapes or any(isinstance(v, dict) or is_traced(v) for v in others):
                return None
        called, rest, kwargs = self.function, self.args[1:], self.kwargs
        return lambda x: _require_tensor(called, called(x, *rest, **kwargs)), [self.args[0]]


def _require_tensor(called: Callable[..., Any], output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    name = getattr(called, "__qualname__", str(called))
    raise WhenceError(
        f"{name} is registered as one operation but returns {type(output).__name__}; only what "
        f"returns one tensor can be."
    )


def fits_kind(kind: str, inputs: list[Tensor]) -> bool:
    """Whether as many tensors depend on the input as an operation of this kind takes."""
    return len(inputs) == 1 if kind in ("pass", "sum") else bool(inputs)


_LEAST_QUERIES = 16  # are worked on together: fewer would take too long

# Composite calls ---------------------------------------------------------------------------------


def run_glu(recording: Recording, call: TorchCall) -> Any:
    """Record a gated linear unit as a product."""
    with recording.active():
        a, b = call.argument(0, "input").chunk(2, call.argument(1, "dim", -1))
        return a * b.sigmoid()


def run_norm(recording: Recording, call: TorchCall) -> Any:
    """Record the Euclidean norm of vectors as a sum of squares."""
    order = next((call.kwargs[name] for name in ("p", "ord") if name in call.kwargs), None)
    order = call.args[1] if len(call.args) > 1 else order
    dim, keepdim = call.argument(2, "dim"), call.argument(3, "keepdim", False)
    vectors = isinstance(dim, int) or (dim is not None and len(dim) == 1)
    if not vectors or order not in (None, 2, "fro") or call.kwargs.get("dtype") is not None:
        return recording.refuse(call.run(), call.name)
    with recording.active():
        return call.argument(0, "input", call.kwargs.get("A")).square().sum(dim, keepdim).sqrt()


def decompose_attention(
    recording: Recording,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001  explained as in evaluation mode
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Record ``scaled_dot_product_attention`` as the operations that it consists of."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    with recording.active():
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        output = _record_without_maps(recording, query, key, value, attn_mask, scale, is_causal)
        if output is not None:
            return output
        if is_causal:
            size = query.shape[-2], key.shape[-2]
            attn_mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
        scores = query @ key.mT
        if attn_mask is not None and attn_mask.requires_grad and not attn_mask.is_leaf:
            return (scores * scale + attn_mask).softmax(-1) @ value
    mask = None if attn_mask is None else attn_mask.detach()
    if scores.requires_grad:
        weights = recording.apply(Softmax(scale, mask), scores)
    else:
        weights = masked_softmax(scores, scale, mask)
    with recording.active():
        return weights @ value


def _record_without_maps(
    recording: Recording,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
) -> Tensor | None:
    """Record attention as one operation that keeps no maps; None if they are small enough."""
    all_traced = all(map(is_traced, (query, key, value)))
    constant = mask is None or not mask.requires_grad or mask.is_leaf
    if query.dim() != 4 or not (all_traced and constant):
        return None
    bytes_of_query = query.shape[0] * query.shape[1] * key.shape[-2] * query.element_size()
    if bytes_of_query * query.shape[-2] <= recording.max_map_bytes:
        return None
    queries_at_once = max(_LEAST_QUERIES, int(recording.max_map_bytes // bytes_of_query))
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        shared = torch.broadcast_shapes(query.shape[:2], key.shape[:2], value.shape[:2])  # type: ignore[no-untyped-call]
        query, key, value = (x.expand(*shared, -1, -1) for x in (query, key, value))
    mask = None if mask is None else mask.detach()
    attention = ChunkedAttention(scale, mask, queries_at_once, causal=causal)
    with without_torch_function():
        output = recording.apply(attention, query, key, value)
    recording.note_chunked_attention(attention, (*query.shape[:-1], key.shape[-2]), output)
    return output


def run_body(recording: Recording, call: TorchCall) -> Any:
    """Run the body of a torch function that is itself written in Python, so its calls are seen."""
    if not isinstance(call.function, types.FunctionType):
        return recording.refuse(call.run(), call.name)
    body = skip_override_check(call.function)
    with recording.active():
        return body(*call.args, **call.kwargs)


def parse_einsum(equation: Any, operands: list[Tensor]) -> tuple[str, str, str] | None:
    """The indices of two operands and of the result, if one matrix product can compute it."""
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    terms, arrow, result = equation.replace(" ", "").partition("->")
    spare = "".join(c for c in string.ascii_uppercase if c not in equation)
    named = []
    for term, operand in zip(terms.split(","), operands, strict=True):
        unnamed = operand.dim() - len(term.replace("...", ""))
        named.append(term.replace("...", spare[-unnamed:] if unnamed else ""))
    a, b = named
    if not arrow:
        result = "..." * ("..." in terms)
        result += "".join(sorted(i for i in set(terms) - set(".,") if (a + b).count(i) == 1))
    longest = max(named, key=lambda term: sum(i in spare for i in term))
    result = result.replace("...", "".join(i for i in longest if i in spare))
    sizes = [dict(zip(i, x.shape, strict=True)) for i, x in zip(named, operands, strict=True)]
    repeated = any(len(set(i)) < len(i) for i in (a, b, result))
    broadcast = any(sizes[0][i] != sizes[1][i] for i in set(a) & set(b))
    return None if repeated or broadcast else (a, b, result)


def einsum_as_matmul(ia: str, ib: str, result: str, a: Tensor, b: Tensor) -> Tensor:
    """Compute an einsum of two operands as reshapes around one matrix product."""
    # An index that one operand has alone and the result lacks is summed away first.
    a, ia = _sum_away(a, ia, ib + result)
    b, ib = _sum_away(b, ib, ia + result)
    size = {**dict(zip(ia, a.shape, strict=True)), **dict(zip(ib, b.shape, strict=True))}
    batch = [i for i in result if i in ia and i in ib]
    rows = [i for i in result if i in ia and i not in ib]
    columns = [i for i in result if i in ib and i not in ia]
    inner = [i for i in ia if i in ib and i not in result]

    def arrange(x: Tensor, own: str, first: list[str], second: list[str]) -> Tensor:
        x = x.permute([own.index(i) for i in batch + first + second])
        lengths = (math.prod(size[i] for i in group) for group in (first, second))
        return x.reshape(*(size[i] for i in batch), *lengths)

    product = arrange(a, ia, rows, inner) @ arrange(b, ib, inner, columns)
    order = batch + rows + columns
    return product.reshape([size[i] for i in order]).permute([order.index(i) for i in result])


def _sum_away(x: Tensor, own: str, kept: str) -> tuple[Tensor, str]:
    gone = [n for n, i in enumerate(own) if i not in kept]
    return (x.sum(gone), "".join(i for i in own if i in kept)) if gone else (x, own)
