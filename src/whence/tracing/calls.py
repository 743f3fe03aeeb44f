"""Which torch calls spell which operation.

PyTorch has many ways to write the same thing: ``a @ b``, ``torch.bmm``, ``torch.einsum``; a fused
call or its parts; in place or not. Here each is led back to the few operations that rules know. A
call is recognised by its name, so that ``torch.add``, ``Tensor.add`` and ``+`` are one.
"""

from __future__ import annotations

import math
import string
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import WhenceError
from whence.tracing.graph.sites import made_of_patches, spelled_out_attention
from whence.tracing.ops.operations import (
    Add,
    ConstantMatMul,
    Convolution,
    Function,
    Linear,
    MatMul,
    Shift,
)

if TYPE_CHECKING:
    from whence.tracing.recorder import Recorder

# Calls that only move numbers about: their ordinary backward routes relevance like gradients.
ROUTING = frozenset(
    """
    T mT H mH t view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze
    permute transpose swapaxes swapdims movedim moveaxis contiguous clone expand expand_as
    broadcast_to repeat tile repeat_interleave cat concat concatenate stack hstack vstack dstack
    split split_with_sizes chunk tensor_split unsafe_chunk unsafe_split unbind __getitem__
    __setitem__ select narrow index_select gather take_along_dim masked_select index_copy
    scatter masked_fill masked_scatter where tril triu diagonal roll flip fliplr flipud pad
    unfold pixel_shuffle pixel_unshuffle channel_shuffle to type type_as float double half
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
# Those of them that take each number by itself.
ELEMENT_WISE = frozenset(
    """
    gelu relu relu6 silu mish elu selu celu leaky_relu hardswish hardsigmoid hardtanh softplus
    softsign logsigmoid sigmoid tanh erf exp abs neg mul multiply div divide true_divide
    """.split()
)
DROPOUT = frozenset(
    """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
    """.split()
)

# Modules that spell one operation in many calls, by the name of their class: activations such as
# NewGELUActivation or QuickGELU, norms such as LlamaRMSNorm or a hand-written LayerNorm.
_PASSING_SUFFIXES = ("RMSNorm", "LayerNorm", "GELU", "GELUActivation", "Mish", "Swish", "SiLU")
_PASSING_PACKAGES = ("transformers.activations", "timm.layers.activations")

_registered: dict[type[nn.Module] | str, str] = {}


def register_operation(spelling: type[nn.Module] | Callable[..., Any] | str, kind: str) -> None:
    """Treat a module class, a torch function or a function's name as one operation.

    Args:
        spelling: A subclass of ``torch.nn.Module`` whose whole ``forward`` is the operation, or a
            function that torch dispatches (a custom operator, say), or such a function's name.
        kind: ``"pass"`` if relevance passes it unchanged (activations, norms), ``"sum"`` if it adds
            or averages its input, ``"product"`` if it multiplies its inputs, or a kind of your own
            for which a rule set has a rule.
    """
    if isinstance(spelling, type) and not issubclass(spelling, nn.Module):
        raise WhenceError(
            f"{spelling.__name__} is neither a module class nor a function: whence cannot see its "
            f"calls. Register a subclass of torch.nn.Module or a function that torch dispatches."
        )
    _registered[spelling if isinstance(spelling, type) else name_of(spelling)] = kind


def kind_of_module(module: nn.Module) -> str | None:
    """The kind of operation that a module is as a whole, or None if its calls are to be seen."""
    for base in type(module).__mro__:
        if base in _registered:
            return _registered[base]
    if type(module).__module__.startswith("torch."):
        return None
    name, package = type(module).__name__, type(module).__module__
    # Subclasses of torch's own norms and activations call one torch function, seen as such; and
    # what has weight matrices or modules of its own does more than its name says.
    matrices = any(parameter.dim() > 1 for parameter in module.parameters())
    if isinstance(module, nn.LayerNorm | nn.GELU | nn.SiLU) or matrices or any(module.children()):
        return None
    if name.endswith(_PASSING_SUFFIXES) or package.startswith(_PASSING_PACKAGES):
        return "pass"
    return None


def mixed_by_module(module: nn.Module) -> int | None:
    """How many of the last dimensions a module mixes, if that is known."""
    element_wise = type(module).__module__.startswith(_PASSING_PACKAGES)
    return 0 if element_wise and not any(True for _ in module.parameters()) else None


def name_of(function: Callable[..., Any] | str) -> str:
    """The name under which a torch function is known here."""
    if isinstance(function, str):
        return function
    if isinstance(function, types.MethodWrapperType):
        return function.__self__.__name__  # type: ignore[attr-defined, no-any-return]
    name: str = getattr(function, "__name__", str(function))
    return name.split(".")[0]


@dataclass
class Call:
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
        simple = self._of_first_argument()
        if simple is not None:
            return simple
        leaves, tree = torch.utils._pytree.tree_flatten((self.args, self.kwargs))
        places = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]
        inputs = [leaves[i] for i in places]
        for i in places:
            leaves[i] = None  # the function outlives the call, and must not keep its graph
        called = self.function

        def function(*values: Tensor) -> Tensor:
            filled = list(leaves)
            for i, value in zip(places, values, strict=True):
                filled[i] = value
            args, kwargs = torch.utils._pytree.tree_unflatten(filled, tree)
            return _one_tensor(called, called(*args, **kwargs))

        return function, inputs

    def _of_first_argument(self) -> tuple[Callable[..., Tensor], list[Tensor]] | None:
        """The same for nearly all calls, quickly; None where other arguments may matter, too."""
        others = (*self.args[1:], *self.kwargs.values())
        if not self.args or not is_traced(self.args[0]):
            return None
        if any(isinstance(v, list | dict | tuple) or is_traced(v) for v in others):
            shapes = all(isinstance(v, int) for o in others if type(o) in (list, tuple) for v in o)
            if not shapes or any(isinstance(v, dict) or is_traced(v) for v in others):
                return None
        called, rest, kwargs = self.function, self.args[1:], self.kwargs
        return lambda x: _one_tensor(called, called(x, *rest, **kwargs)), [self.args[0]]


def _one_tensor(called: Any, output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    name = getattr(called, "__qualname__", str(called))
    raise WhenceError(
        f"{name} is registered as one operation but returns {type(output).__name__}; only what "
        f"returns one tensor can be."
    )


def is_traced(value: object) -> bool:
    """Whether a value is a tensor that depends on the model's input.

    Everything else is computed without gradients, so that only parameters, which are leaves, and
    what depends on the input can require them.
    """
    return isinstance(value, Tensor) and value.requires_grad and not value.is_leaf


def spell(record: Recorder, call: Call) -> Any:
    """Make a call as the operation that it spells."""
    if call.name in _registered:
        return _whole(record, call, _registered[call.name])
    if call.name in ROUTING:
        return record.route(call)
    if call.name in PASSING:
        return _whole(record, call, "pass")
    if call.name in SUMMING:
        return _whole(record, call, "sum")
    if call.name in DROPOUT:
        return call.argument(0, "input")
    if call.name in _SPELLINGS:
        return _SPELLINGS[call.name](record, call)
    return record.refuse(call.run(), call.name)


def _whole(record: Recorder, call: Call, kind: str) -> Any:
    function, inputs = call.as_function()
    if not fits(kind, inputs):
        return record.refuse(call.run(), call.name)
    operation = Function(kind, function, _mixed(call), name=call.name, where=record.where(kind))
    return record.apply(operation, *inputs)


def _mixed(call: Call) -> int | None:
    """How many of the last dimensions of its input a call mixes, if that is known."""
    if call.name in ELEMENT_WISE:
        # A constant of fewer dimensions is the same for all rows that are counted further ahead.
        others = (v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Tensor))
        return max((v.dim() for v in others if not is_traced(v)), default=0)
    if call.name in ("layer_norm", "rms_norm"):
        return len(call.argument(1, "normalized_shape"))
    if call.name == "softmax":
        return 1 if call.argument(1, "dim") == -1 else None
    return None


def fits(kind: str, inputs: list[Tensor]) -> bool:
    """Whether as many tensors depend on the input as an operation of this kind takes."""
    return len(inputs) == 1 if kind in ("pass", "sum") else bool(inputs)


# Linear maps -------------------------------------------------------------------------------------


def _linear(record: Recorder, call: Call) -> Any:
    x, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    if is_traced(weight) or is_traced(bias):
        with record:
            product = x @ weight.mT
            return product if bias is None else product + bias
    return record.apply(Linear(weight, bias), x)


def _convolution(record: Recorder, call: Call) -> Any:
    x, weight, bias = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    dimensions = int(call.name[4])
    if is_traced(weight) or is_traced(bias) or x.dim() != dimensions + 2:
        return record.refuse(call.run(), call.name)
    stride, padding, dilation = (
        [value] * dimensions if isinstance(value, int) else value
        for value in (
            call.argument(3, "stride", 1),
            call.argument(4, "padding", 0),
            call.argument(5, "dilation", 1),
        )
    )
    if padding == "same":
        wanted = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        with record:
            x = F.pad(x, [p for n in reversed(wanted) for p in (n // 2, n - n // 2)])
    if isinstance(padding, str):
        padding = [0] * dimensions
    settings = (stride, padding, dilation, call.argument(6, "groups", 1))
    output = record.apply(Convolution(weight, bias, settings), x)
    record.grids.append(tuple(output.shape[2:]))
    return output


# Products of two tensors -------------------------------------------------------------------------


def _matmul(record: Recorder, call: Call) -> Any:
    a, b = call.argument(0, "input"), call.argument(1, "other", call.kwargs.get("mat2"))
    if b.dim() == 1 and a.dim() > 1:
        with record:
            return (a @ b[:, None])[..., 0]
    if min(a.dim(), b.dim()) < 2:
        return record.refuse(call.run(), call.name)
    if is_traced(a) and is_traced(b):
        product = MatMul()
        output = record.apply(product, a, b)
        record.notice_attention(product, a, b)
        return output
    if is_traced(a):
        return record.apply(ConstantMatMul(b, weight_first=False), a)
    return record.apply(ConstantMatMul(a, weight_first=True), b)


def _added_matmul(record: Recorder, call: Call) -> Any:
    term = call.argument(0, "input")
    a = call.argument(1, "mat1", call.kwargs.get("batch1"))
    b = call.argument(2, "mat2", call.kwargs.get("batch2"))
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    constant = not is_traced(b) and not is_traced(term)
    if call.name == "addmm" and constant and term.dim() == 1 and alpha == beta == 1:
        return record.apply(Linear(b.mT, term), a)
    with record:
        product = a @ b
        product = product if alpha == 1 else product * alpha
        return product if beta == 0 else product + (term if beta == 1 else term * beta)


def _einsum(record: Recorder, call: Call) -> Any:
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    indices = _einsum_indices(equation, operands)
    if indices is None:
        return record.refuse(call.run(), "einsum")
    with record:
        return _einsum_as_matmul(*indices, *operands)


def _einsum_indices(equation: Any, operands: list[Tensor]) -> tuple[str, str, str] | None:
    """The indices of two operands and of the result, if one matrix product can do it."""
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


def _einsum_as_matmul(ia: str, ib: str, result: str, a: Tensor, b: Tensor) -> Tensor:
    """An einsum of two operands as reshapes around one matrix product."""
    # An index that one operand has alone and the result lacks is summed away first.
    a, ia = _summed(a, ia, ib + result)
    b, ib = _summed(b, ib, ia + result)
    size = {**dict(zip(ia, a.shape, strict=True)), **dict(zip(ib, b.shape, strict=True))}
    batch = [i for i in result if i in ia and i in ib]
    rows = [i for i in result if i in ia and i not in ib]
    columns = [i for i in result if i in ib and i not in ia]
    inner = [i for i in ia if i in ib and i not in result]

    def arranged(x: Tensor, own: str, first: list[str], second: list[str]) -> Tensor:
        x = x.permute([own.index(i) for i in batch + first + second])
        lengths = (math.prod(size[i] for i in group) for group in (first, second))
        return x.reshape(*(size[i] for i in batch), *lengths)

    product = arranged(a, ia, rows, inner) @ arranged(b, ib, inner, columns)
    order = batch + rows + columns
    return product.reshape([size[i] for i in order]).permute([order.index(i) for i in result])


def _summed(x: Tensor, own: str, kept: str) -> tuple[Tensor, str]:
    gone = [n for n, i in enumerate(own) if i not in kept]
    return (x.sum(gone), "".join(i for i in own if i in kept)) if gone else (x, own)


# Sums and element-wise products ------------------------------------------------------------------


def _add(record: Recorder, call: Call) -> Any:
    a, b = call.argument(0, "input"), call.argument(1, "other")
    scale = call.kwargs.get("alpha", 1)
    if "sub" in call.name:
        scale = -scale
    if call.name in ("__rsub__", "rsub"):
        a, b = b, a
    if is_traced(a) and is_traced(b):
        return record.apply(Add(scale), a, b)
    traced, constant = (a, b) if is_traced(a) else (b, a)
    if scale == 1 and isinstance(constant, Tensor) and made_of_patches(traced):
        return record.apply(Shift(constant), traced)
    if is_traced(a) or scale == 1:
        # A constant is added: the ordinary backward hands everything to the other term.
        return record.route(call)
    return _whole(record, call, "pass")


def _multiply(record: Recorder, call: Call) -> Any:
    if call.kwargs.get("rounding_mode") is not None:
        return record.refuse(call.run(), call.name)
    both = is_traced(call.argument(0, "input")) and is_traced(call.argument(1, "other"))
    of_two = "product" if "mul" in call.name else "quotient"
    return _whole(record, call, of_two if both else "pass")


def _glu(record: Recorder, call: Call) -> Any:
    with record:
        a, b = call.argument(0, "input").chunk(2, call.argument(1, "dim", -1))
        return a * b.sigmoid()


# Attention ---------------------------------------------------------------------------------------


def _attention(record: Recorder, call: Call) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return spelled_out_attention(record, **given)


def _unfolded(record: Recorder, call: Call) -> Any:
    """Run the body of a torch function that is itself written in Python, so its calls are seen.

    Such a function first asks whether anyone overrides it, and hands itself over whole if so. A
    copy whose question is answered no goes on to its body, where the recorder sees every call.
    """
    function = call.function
    assert isinstance(function, types.FunctionType)
    unasked = types.FunctionType(
        function.__code__,
        {**function.__globals__, "has_torch_function": lambda _: False},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    unasked.__kwdefaults__ = function.__kwdefaults__
    with record:
        return unasked(*call.args, **call.kwargs)


_SPELLINGS: dict[str, Callable[[Any, Call], Any]] = {
    **dict.fromkeys(("linear",), _linear),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _added_matmul),
    **dict.fromkeys(("einsum",), _einsum),
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "__rsub__"), _add),
    **dict.fromkeys(("mul", "multiply", "div", "divide", "true_divide"), _multiply),
    **dict.fromkeys(("glu",), _glu),
    **dict.fromkeys(("scaled_dot_product_attention",), _attention),
    **dict.fromkeys(("multi_head_attention_forward",), _unfolded),
}
