"""Private and undocumented parts of torch, the only place where whence touches them.

Each has a name, a type and an entry in ``tests/_util/test_torch_internals.py``, which names the
part that a release of torch has changed. Many run thousands of times per explanation, so they are
aliases where they can be.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef
from torch._vmap_internals import _vmap
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import Node
from torch.utils._pytree import TreeSpec as TreeSpec
from torch.utils._pytree import tree_flatten, tree_unflatten

from whence._util.text import first_line
from whence.errors import WhenceError

# Nodes of the autograd graph ---------------------------------------------------------------------


class TensorMetadata(Protocol):
    """Shape, type and device of a tensor that an autograd node has put out."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class _FunctionNode(Protocol):
    """A node of an ``autograd.Function`` that is written in Python."""

    needs_input_grad: tuple[bool, ...]

    def apply(self, *gradients: Tensor) -> Tensor | tuple[Tensor | None, ...] | None:
        """Run its backward."""


# Names of nodes, as `node.name()` tells them.
ADD = "AddBackward0"
ALIAS = "AliasBackward0"
CLONE = "CloneBackward0"
COPY = "torch::autograd::CopyBackwards"
TO_COPY = "ToCopyBackward0"
SUB = "SubBackward0"
LAYER_NORM = "NativeLayerNormBackward0"
GELU = "GeluBackward0"
RELU = "ReluBackward0"
SILU = "SiluBackward0"
MAX_POOLS = ("MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0")
PERMUTE = "PermuteBackward0"
RESHAPE_ALIAS = "ReshapeAliasBackward0"
SELECT = "SelectBackward0"
SLICE = "SliceBackward0"
SPLIT = "SplitBackward0"
SQUEEZE = "SqueezeBackward1"
STACK = "StackBackward0"
T = "TBackward0"
TRANSPOSE = "TransposeBackward0"
UNSAFE_VIEW = "UnsafeViewBackward0"
UNSQUEEZE = "UnsqueezeBackward0"
VIEW = "ViewBackward0"

# Metadata of the forward outputs of a node, whose gradients are the inputs of the node.
output_metadata: Callable[[Node], Sequence[TensorMetadata]] = attrgetter("_input_metadata")
# What others have noted about a node, by keys of their own.
node_metadata: Callable[[Node], dict[str, Any]] = attrgetter("metadata")
# The factor of the second term of an addition.
saved_alpha: Callable[[Node], float] = attrgetter("_saved_alpha")
# The step of a slice.
saved_step: Callable[[Node], int] = attrgetter("_saved_step")
_saved_sizes: Callable[[Node], Sequence[int]] = attrgetter("_saved_self_sym_sizes")
_saved_dim: Callable[[Node], int] = attrgetter("_saved_dim")
_saved_dims: Callable[[Node], Sequence[int]] = attrgetter("_saved_dims")
_saved_index: Callable[[Node], int] = attrgetter("_saved_index")
_saved_start: Callable[[Node], int] = attrgetter("_saved_start")
_saved_normalized_shape: Callable[[Node], Sequence[int]] = attrgetter("_saved_normalized_shape")
_saved_norm_weight: Callable[[Node], Tensor | None] = attrgetter("_saved_weight")
_saved_spread: Callable[[Node], Tensor] = attrgetter("_saved_result2")
_saved_windows: Callable[[Node], tuple[Sequence[int], ...]] = attrgetter(
    "_saved_kernel_size", "_saved_stride", "_saved_padding", "_saved_dilation"
)
_saved_two_dims: Callable[[Node], tuple[int, int]] = attrgetter("_saved_dim0", "_saved_dim1")


def saved_sizes(node: Node) -> torch.Size:
    """Return the shape of the tensor that a view, a selection or a slice was taken of."""
    return torch.Size(_saved_sizes(node))


def saved_transposed_dims(node: Node) -> tuple[int, int]:
    """Return the two dimensions that a transposition swapped."""
    first, second = _saved_two_dims(node)
    return _to_signed(first), _to_signed(second)


def saved_permutation(node: Node) -> list[int]:
    """Return the order of dimensions of a permutation."""
    return [_to_signed(dim) for dim in _saved_dims(node)]


def saved_windows(
    node: Node,
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    """Return size, stride, padding and dilation of the windows of a pooling."""
    size, stride, padding, dilation = _saved_windows(node)
    return size, stride or size, padding, dilation


def saved_reduced_dims(node: Node) -> list[int]:
    """Return the dimensions that a maximum or another choice was taken along; empty if all."""
    dims = getattr(node, "_saved_dim", [])
    return [_to_signed(dim) for dim in ([dims] if isinstance(dims, int) else dims)]


def _get_signed(name: str) -> Callable[[Node], int]:
    return lambda node: _to_signed(getattr(node, name))


def _to_signed(number: int) -> int:
    """Return a signed number that autograd saved as an unsigned one of 64 bits."""
    return number - 2**64 if number >= 2**63 else number


# Of a selection or a slice: its dimension, its index, where it starts; negative from the end.
saved_dim = _get_signed("_saved_dim")
saved_index = _get_signed("_saved_index")
saved_start = _get_signed("_saved_start")

# What tells which part of a tensor a node reads, in numbers that Python gave.
_BOUNDS = {
    SELECT: ("_saved_dim", "_saved_index"),
    SLICE: ("_saved_dim", "_saved_start", "_saved_end", "_saved_step"),
    SPLIT: ("_saved_dim", "_saved_split_size"),
    "SplitWithSizesBackward0": ("_saved_dim", "_saved_split_sizes"),
    "RollBackward0": ("_saved_dims", "_saved_shifts"),
    "FlipBackward0": ("_saved_dims",),
    PERMUTE: ("_saved_dims",),
}


def read_kind(node: Node) -> object:
    """Read the name of a node, with the part of a tensor that it takes, or where it moves it."""
    name = node.name()
    names = _BOUNDS.get(name)
    if names is None:
        return name
    bounds = (getattr(node, bound, None) for bound in names)
    return name, *(tuple(one) if isinstance(one, Sequence) else one for one in bounds)


def run_node(node: Node, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Run the backward of one node, which may belong to an ``autograd.Function`` in Python.

    Args:
        node: A node of the autograd graph.
        gradients: One for each output of its forward.

    Returns:
        A gradient for each edge of ``node.next_functions``, of which some may be None.
    """
    if callable(node):
        results = node(*gradients)
        return results if isinstance(results, tuple) else (results,)
    # autograd.grad would not stop at the inputs of the node if one of them leads to another, and
    # would not tell them apart if they are the same tensor.
    given = [
        torch.zeros(like.shape, dtype=like.dtype, device=like.device) if grad is None else grad
        for grad, like in zip(gradients, output_metadata(node), strict=True)
    ]
    function = cast("_FunctionNode", node)
    try:
        results = function.apply(*given)
    except Exception as error:  # written by whoever wrote the model
        raise WhenceError(
            f"The model's own backward pass, in {type(node).__name__.removesuffix('Backward')}, "
            f"fails ({first_line(error)}), so nothing can be propagated through it."
        ) from error
    results = results if isinstance(results, tuple) else (results,)
    needed = (grad for grad, need in zip(results, function.needs_input_grad, strict=False) if need)
    return [None if source is None else next(needed) for source, _ in node.next_functions]


def run_single_node(
    output: Tensor, inputs: Sequence[Tensor], gradient: Tensor
) -> tuple[Tensor, ...] | None:
    """Gradients by leaves that a single node of torch's own has made an output of.

    That is far quicker than autograd's engine.

    Returns:
        One for each input; None if the graph is another, or gradients need more than the node.
    """
    node, (x, *_) = output.grad_fn, inputs
    if node is None or not callable(node) or not _is_single(node, inputs):
        return None
    if len(output_metadata(node)) > 1:
        return None
    found = node(gradient)
    found = found[0] if isinstance(found, tuple) else found
    fits = isinstance(found, Tensor) and found.shape == x.shape and found.dtype == x.dtype
    return (found,) if fits else None


def _is_single(node: Node, inputs: Sequence[Tensor]) -> bool:
    """Tell whether a node of torch's own reads a leaf, the only input, and nothing else."""
    if len(inputs) != 1 or not callable(node):
        return False
    edges = node.next_functions
    if not edges or getattr(edges[0][0], "variable", None) is not inputs[0]:
        return False
    return len(edges) == 1 or all(upstream is None for upstream, _ in edges[1:])


def name_single_node(output: Tensor, inputs: Sequence[Tensor]) -> str:
    """Name the single node of torch's own that has made an output of a leaf; empty if it is not."""
    node = output.grad_fn
    return node.name() if node is not None and _is_single(node, inputs) else ""


class SavedNorm(NamedTuple):
    """What autograd keeps of a layer norm.

    Attributes:
        dims: The dimensions that it normalizes, counted from the end.
        weight: The weight, or None.
        inverse_spread: One over the root of variance and epsilon, in the shape of means.
    """

    dims: tuple[int, ...]
    weight: Tensor | None
    inverse_spread: Tensor


def saved_layer_norm(node: Node | None) -> SavedNorm | None:
    """Return what a node keeps of a layer norm; None if it is the node of another operation."""
    if node is None or node.name() != LAYER_NORM:
        return None
    count = len(_saved_normalized_shape(node))
    return SavedNorm(tuple(range(-count, 0)), _saved_norm_weight(node), _saved_spread(node))


def has_lost_gradient(output: object, call: str) -> bool:
    """Tell whether autograd does not know that a call made an output of its arguments.

    That is meant by `detach`, and by calls that read no numbers, such as ``zeros_like``. Other
    whole numbers than those of eight bits are positions and decisions.
    """
    if not isinstance(output, Tensor):
        return False
    if not (output.is_floating_point() or output.is_quantized or output.dtype == torch.int8):
        return False
    if output.grad_fn is not None:
        return "NotImplemented" in output.grad_fn.name()
    return not (call.startswith(("new_", "detach", "floor_div")) or call.endswith("_like"))


# A function of autograd whose ``apply`` is that of C++, without what transforms of functions need.
SingleLevelFunction: Any = _SingleLevelFunction
# Whether a model has switched on autocast for any device.
is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


def is_forward_mode() -> bool:
    """Whether tangents are computed along with values, which operators may lack a formula for."""
    return forward_ad._current_level >= 0


# Operators ---------------------------------------------------------------------------------------


def softmax_backward(gradient: Tensor, output: Tensor, dim: int) -> Tensor:
    """Compute the gradient of a softmax from its output."""
    return torch._softmax_backward_data(gradient, output, dim, output.dtype)


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    settings: tuple[list[int], list[int], list[int], bool, list[int], int],
) -> Tensor:
    """Compute the gradient of a convolution by its input.

    Args:
        gradient: Of the output.
        x: The input.
        weight: The kernel.
        settings: Stride, padding, dilation, whether transposed, output padding and groups.
    """
    only_x = (True, False, False)
    backward = torch.ops.aten.convolution_backward
    found: Tensor = backward(gradient, x, weight, None, *settings, only_x)[0]
    return found


def batched_map(
    function: Callable[..., tuple[Tensor | None, ...]],
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Map a function over the first dimension of its arguments; results that are None stay so.

    This is the ``vmap`` that autograd uses for batched gradients. Unlike ``torch.func.vmap`` it
    lets the function use autograd inside.
    """
    mapped: Callable[..., tuple[Tensor | None, ...]]
    mapped = _vmap(function, 0, 0, allow_none_pass_through=True)
    return mapped


# Calls that a TorchFunctionMode sees -------------------------------------------------------------

# The call by which `torch.no_grad` and `torch.enable_grad` switch gradients.
SET_GRAD_ENABLED = "_set_grad_enabled"
# Switches all torch function modes off while it is entered.
without_torch_function = torch._C.DisableTorchFunction
# The name of the attribute that a getter reads.
attribute_name: Callable[[types.MethodWrapperType], str] = attrgetter("__self__.__name__")
# The type of calls that read an attribute of a tensor, such as ``shape`` or ``T``.
AttributeGetter = types.MethodWrapperType


_OVERRIDE_CHECKS = ["has_torch_function" + ending for ending in ("", "_unary", "_variadic")]


def skip_override_check(function: types.FunctionType) -> types.FunctionType:
    """Copy a function of ``torch.nn.functional`` so that a mode sees the calls of its body.

    Such a function asks ``has_torch_function`` first and hands itself over whole if so.
    """
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(_OVERRIDE_CHECKS, lambda *_: False)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def custom_operator_name(operation: object) -> str:
    """Return the name of a custom operator, as its calls have it; empty if it is none."""
    if isinstance(operation, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return operation.__name__.split(".")[0]
    return operation._name if isinstance(operation, CustomOpDef) else ""


# Tensors, modules and trees ----------------------------------------------------------------------

# Parameters, buffers and modules that a module holds itself.
module_registries: Callable[
    [nn.Module],
    tuple[Mapping[str, Tensor | None], Mapping[str, Tensor | None], Mapping[str, nn.Module | None]],
] = attrgetter("_parameters", "_buffers", "_modules")
# Attributes of a module that hold its backward hooks.
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
# The attribute of a module that holds what `module.compile()` made of it.
COMPILED_CALL = "_compiled_call_impl"

# Leaves of nested containers with the structure around them, and the way back.
flatten_tree: Callable[[object], tuple[list[Any], TreeSpec]] = tree_flatten
unflatten_tree: Callable[[Sequence[object], TreeSpec], Any] = tree_unflatten


def parameter_initializer(module: nn.Module) -> Callable[[], object] | None:
    """Return the method of a module of torch that draws its parameters anew, if it has one."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return reset if callable(reset) else None


def view_base(tensor: Tensor) -> Tensor | None:
    """Return the tensor that this one is a view of, or itself if it is no view."""
    return tensor._base if tensor._is_view() else tensor


def uncompiled_module(module: nn.Module) -> nn.Module | None:
    """Return the module that ``torch.compile`` was given, or None for any other module."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def is_dynamic_quantized_linear(module: nn.Module) -> bool:
    """Tell whether a module is a linear map that ``quantize_dynamic`` made."""
    package = type(module).__module__
    return package.startswith("torch.") and ".quantized.dynamic." in package
