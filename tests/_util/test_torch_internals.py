"""Private parts of torch, each on a tiny example: a failure names the part that torch changed."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence._util import torch_graphs, torch_operators, torch_products
from whence._util import torch_internals as internals

CHECKS: dict[str, tuple[str, Callable[[], None]]] = {}


def relies(user: str, part: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a check of a private part of torch on which a package of whence relies."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        CHECKS[part] = user, check
        return check

    return register


def leaf(*shape: int) -> torch.Tensor:
    numbers = torch.arange(float(math.prod(shape))) / 7
    return numbers.reshape(shape).requires_grad_()


def same(found: object, expected: object) -> None:
    """Assert equality in a way that also shows values from within checks."""
    assert found == expected, f"{found!r} is not {expected!r}"


class Names(TorchFunctionMode):
    """Notes the calls that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Callable[..., object]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


# Nodes of the autograd graph ---------------------------------------------------------------------


@relies("whence.tracing", "the names of autograd's nodes")
def check_names() -> None:
    x = leaf(2, 3, 4)
    outputs = {
        internals.ADD: x + 1,
        internals.CLONE: x.clone(),
        internals.PERMUTE: x.permute(0, 2, 1),
        internals.SELECT: x[0],
        internals.SLICE: x[:, 1:],
        internals.SUB: x - 1,
        internals.TO_COPY: x.double(),
        internals.TRANSPOSE: x.transpose(0, 1),
        internals.VIEW: x.view(6, 4),
        internals.UNSAFE_VIEW: x.transpose(0, 1).reshape(6, 4),
        internals.RESHAPE_ALIAS: torch.ops.aten._reshape_alias(x, (6, 4), (4, 1)),
    }
    same([y.grad_fn.name() for y in outputs.values()], list(outputs))


@relies("whence.tracing", "`Node._input_metadata`")
def check_output_metadata() -> None:
    found = internals.output_metadata(leaf(2, 3).bfloat16().grad_fn)
    same(
        [(tuple(m.shape), m.dtype, m.device.type) for m in found], [((2, 3), torch.bfloat16, "cpu")]
    )


@relies("whence.tracing", "`AddBackward0._saved_alpha`")
def check_saved_alpha() -> None:
    same(internals.saved_alpha(torch.add(leaf(2), leaf(2), alpha=3).grad_fn), 3)


@relies("whence.tracing", "`SelectBackward0._saved_self_sym_sizes`, `._saved_dim`, `._saved_index`")
def check_select() -> None:
    node = leaf(2, 3).select(-1, -2).grad_fn
    same(internals.saved_sizes(node), torch.Size((2, 3)))
    same((internals.saved_dim(node) % 2, internals.saved_index(node) % 3), (1, 1))


@relies("whence.tracing", "`SliceBackward0._saved_dim`, `._saved_start`, `._saved_step`")
def check_slice() -> None:
    node = leaf(2, 9)[:, -5::2].grad_fn
    start, *_ = slice(internals.saved_start(node), None).indices(9)
    same((internals.saved_dim(node) % 2, start, internals.saved_step(node)), (1, 4, 2))


@relies("whence.tracing", "`ViewBackward0._saved_self_sym_sizes`")
def check_view() -> None:
    same(internals.saved_sizes(leaf(2, 3).view(6).grad_fn), torch.Size((2, 3)))


@relies("whence.tracing", "`TransposeBackward0._saved_dim0`, `._saved_dim1`")
def check_transpose() -> None:
    dims = internals.saved_transposed_dims(leaf(2, 3, 4).transpose(-1, 1).grad_fn)
    same([dim % 3 for dim in dims], [2, 1])


@relies("whence.tracing", "`PermuteBackward0._saved_dims`")
def check_permute() -> None:
    dims = internals.saved_permutation(leaf(2, 3, 4).permute(-1, 0, 1).grad_fn)
    same([dim % 3 for dim in dims], [2, 0, 1])


@relies("whence.tracing", "calling a node of the autograd graph")
def check_run_node() -> None:
    x = leaf(3)
    [found] = internals.run_node((x * 2).grad_fn, [torch.ones(3)])[:1]
    same(found.tolist(), [2.0] * 3)


class Weighted(torch.autograd.Function):
    """x w + 0 c, of which c needs no gradient, with a second output."""

    @staticmethod
    def forward(ctx, x, c, w):
        ctx.operation = "weighted"
        ctx.save_for_backward(x, w)
        return x * w, x + 1

    @staticmethod
    def backward(ctx, grad, other):
        x, w = ctx.saved_tensors
        return grad * w + other, None, grad * x


@relies("whence.tracing", "`apply` and `needs_input_grad` of a node of an autograd.Function")
def check_run_python_node() -> None:
    x = leaf(3)
    output, _ = Weighted.apply(x, torch.ones(3), x)
    node = output.grad_fn
    found = internals.run_node(node, [torch.ones(3), None])
    same(len(found), len(node.next_functions))
    same(
        [None if grad is None else grad.tolist() for grad in found], [x.tolist(), None, x.tolist()]
    )


@relies("whence.tracing", "attributes of an autograd.Function's context on its node")
def check_context_is_node() -> None:
    output, _ = Weighted.apply(leaf(3), torch.ones(3), leaf(3))
    same(output.grad_fn.operation, "weighted")


@relies("whence.tracing", "single nodes that are called in place of autograd's engine")
def check_single_nodes() -> None:
    x = leaf(2, 3)
    y = F.layer_norm(x, (3,), torch.full((3,), 2.0), None)
    gradient = torch.arange(6.0).reshape(2, 3)
    (expected,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
    found = internals.run_single_node(y, (x,), gradient)
    assert found is not None
    assert torch.equal(found[0], expected)
    assert internals.run_single_node((x * 2).sin(), (x,), gradient) is None


@relies("whence.rules", "what autograd keeps of a layer norm")
def check_saved_layer_norm() -> None:
    x, weight = leaf(2, 3), torch.full((3,), 2.0)
    saved = internals.saved_layer_norm(F.layer_norm(x, (3,), weight, None, 1e-3).grad_fn)
    assert saved is not None
    same(saved.dims, (-1,))
    spread = (x.detach().var(-1, correction=0, keepdim=True) + 1e-3).rsqrt()
    assert torch.allclose(saved.inverse_spread, spread)
    assert saved.weight is not None
    assert torch.equal(saved.weight, weight)
    same(internals.saved_layer_norm((x * 2).grad_fn), None)


@relies("whence.tracing", "whether autocast is on")
def check_autocast() -> None:
    same(internals.is_any_autocast_enabled(), False)
    with torch.autocast("cpu"):
        same(internals.is_any_autocast_enabled(), True)


# Operators ---------------------------------------------------------------------------------------


@relies("whence.tracing", "`torch._softmax_backward_data`")
def check_softmax_backward() -> None:
    x, gradient = leaf(2, 3), torch.randn(2, 3)
    y = x.softmax(-1)
    found = internals.softmax_backward(gradient, y.detach(), -1)
    torch.testing.assert_close(found, *torch.autograd.grad(y, x, gradient))


@relies("whence.tracing", "`torch.ops.aten.convolution_backward`")
def check_convolution_backward() -> None:
    x, weight = leaf(1, 2, 6, 6), torch.randn(3, 2, 2, 2)
    y = F.conv2d(x, weight, stride=2)
    gradient = torch.randn_like(y)
    settings = ([2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    found = internals.convolution_backward(gradient, x.detach(), weight, settings)
    torch.testing.assert_close(found, *torch.autograd.grad(y, x, gradient))


@relies("whence.tracing", "`torch._vmap_internals._vmap`")
def check_batched_map() -> None:
    def gradient(cotangent):
        x = leaf(3)
        return (*torch.autograd.grad(x.square().sum(), x, torch.ones(())), None, cotangent * 2)

    ones = torch.ones(2, 3)
    found = internals.batched_map(gradient)(ones)
    same((found[0].shape, found[1]), (torch.Size((2, 3)), None))
    assert torch.equal(found[2], ones * 2)


# Calls that a TorchFunctionMode sees -------------------------------------------------------------


@relies("whence.tracing", "`torch._C._set_grad_enabled`")
def check_set_grad_enabled() -> None:
    with Names() as names, torch.no_grad():
        pass
    assert internals.SET_GRAD_ENABLED in [func.__name__ for func in names.seen]


@relies("whence.tracing", "`torch._C.DisableTorchFunction`")
def check_without_torch_function() -> None:
    with Names() as names, internals.without_torch_function():
        torch.ones(2).sum()
    same(names.seen, [])


@relies("whence.tracing", "`MethodWrapperType` of attribute getters")
def check_attribute_getter() -> None:
    x = leaf(2, 3)
    with Names() as names:
        _ = x.T, x.sum()
    getter, method = names.seen
    assert isinstance(getter, internals.AttributeGetter)
    assert not isinstance(method, internals.AttributeGetter)
    same(internals.attribute_name(getter), "T")


@relies("whence.tracing", "`has_torch_function` in `torch.nn.functional`")
def check_skip_override_check() -> None:
    attention, x = nn.MultiheadAttention(4, 2), torch.randn(3, 1, 4)
    with Names() as names:
        attention(x, x, x)
    [whole] = [f for f in names.seen if f.__name__ == "multi_head_attention_forward"]
    with Names() as names:
        internals.skip_override_check(whole)(
            *(x, x, x, 4, 2, attention.in_proj_weight, attention.in_proj_bias, None, None),
            *(False, 0.0, attention.out_proj.weight, attention.out_proj.bias),
        )
    seen = [f.__name__ for f in names.seen]
    assert "linear" in seen
    assert "multi_head_attention_forward" not in seen


@relies("whence.tracing", "`torch.library.CustomOpDef._name`")
def check_custom_operator_name() -> None:
    define = torch.library.custom_op("whence_internals::twice", mutates_args=())
    twice = define(_double)
    same(internals.custom_operator_name(twice), "twice")
    same(internals.custom_operator_name(torch.ops.whence_internals.twice), "twice")
    same(internals.custom_operator_name(torch.ops.whence_internals.twice.default), "twice")
    same(internals.custom_operator_name(torch.add), "")


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


# Tensors, modules and trees ----------------------------------------------------------------------


@relies("whence.tracing", "`Module._parameters`, `._buffers`, `._modules`")
def check_module_registries() -> None:
    norm = nn.BatchNorm1d(2)
    parameters, buffers, _ = internals.module_registries(norm)
    same([*parameters], ["weight", "bias"])
    assert buffers["running_mean"] is norm.running_mean
    same([*internals.module_registries(nn.Sequential(norm))[2].values()], [norm])


@relies("whence.tracing", "`Module._backward_hooks`, `._backward_pre_hooks`")
def check_backward_hooks() -> None:
    module = nn.Identity()
    module.register_full_backward_hook(print)
    module.register_full_backward_pre_hook(print)
    for name in internals.BACKWARD_HOOKS:
        same([*module.__dict__[name].values()], [print])


@relies("whence.tracing", "`Module._compiled_call_impl`")
def check_compiled_call() -> None:
    module = nn.Identity()
    module.compile()
    assert module.__dict__[internals.COMPILED_CALL] is not None


@relies("whence.tracing", "`OptimizedModule._orig_mod`")
def check_uncompiled_module() -> None:
    module = nn.Identity()
    assert internals.uncompiled_module(torch.compile(module)) is module
    assert internals.uncompiled_module(module) is None


@relies("whence.metrics", "`MultiheadAttention._reset_parameters`")
def check_parameter_initializer() -> None:
    for module in (nn.Linear(2, 2), nn.MultiheadAttention(2, 1)):
        assert internals.parameter_initializer(module) is not None
    assert internals.parameter_initializer(nn.Identity()) is None


@relies("whence.tracing", "`Tensor._base`, `Tensor._is_view`")
def check_view_base() -> None:
    x = torch.ones(2)
    assert internals.view_base(x.view(1, 2)) is x
    assert internals.view_base(x) is x


@relies("whence.engine.compiled", "`torch.utils._pytree`")
def check_tree() -> None:
    tree = {"a": [1, (2, None)], "b": 3}
    leaves, structure = internals.flatten_tree(tree)
    same([x for x in leaves if x is not None], [1, 2, 3])
    same(internals.unflatten_tree(leaves, structure), tree)


# Graphs of operators -----------------------------------------------------------------------------


def gradient_of_product(x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return list(torch.autograd.grad((x @ x).sum(), x))


@relies("whence.engine.compiled", "`torch.utils._python_dispatch.TorchDispatchMode`")
def check_trace_to_graph() -> None:
    x = torch.randn(3, 3)
    graph, constants = torch_graphs.trace_to_graph(gradient_of_product, [x])
    assert not constants
    assert any(node.target in torch_operators.PRODUCTS for node in graph.nodes)
    torch.testing.assert_close(fx.GraphModule({}, graph)(-x), gradient_of_product(-x))


@relies("whence.engine.compiled", "`torch.Tag.data_dependent_output`")
def check_values_are_refused() -> None:
    def look_at_written(x: torch.Tensor) -> list[torch.Tensor]:
        numbers = torch.zeros(2)
        numbers[0] = x.sum()
        return [x * numbers.max().item()]

    weight = torch.ones(1)
    for compute in (
        lambda x: [x * x.sum().item()],
        lambda x: [x * (weight * 2).item()],
        look_at_written,
    ):
        with pytest.raises(RuntimeError, match="depends on values"):
            torch_graphs.trace_to_graph(compute, [torch.ones(2)])
    graph, constants = torch_graphs.trace_to_graph(
        lambda x: [x * torch.arange(3).max().item() * torch.tensor(2.0).item()], [torch.ones(2)]
    )
    same(fx.GraphModule({}, graph)(torch.ones(2), *constants)[0].tolist(), [4.0, 4.0])


@relies("whence.engine.compiled", "`torch._inductor.compile`")
def check_compile_graph() -> None:
    graph, _ = torch_graphs.trace_to_graph(lambda x: [x @ x], [torch.ones(2, 2)])
    compiled = torch_graphs.compile_graph(fx.GraphModule({}, graph), [torch.ones(2, 2)])
    [found] = compiled(torch.full((2, 2), 2.0))
    same(found.tolist(), [[8.0, 8.0]] * 2)


@relies("whence.engine.compiled", "`torch._inductor.config.cpp.vec_isa_ok`, `get_cpp_compiler`")
def check_setting_of_registers() -> None:
    from torch._inductor import config, cpp_builder

    assert config.cpp.vec_isa_ok in (None, True, False)
    assert callable(cpp_builder.get_cpp_compiler)


@relies("whence.engine.compiled", "`CppPythonBindingsCodeCache.load_pybinding_async`")
def check_header_of_kernels() -> None:
    from torch._inductor import codecache

    assert callable(codecache.CppPythonBindingsCodeCache.load_pybinding_async)


@relies("whence.engine.compiled", "`fx.Node.meta`, and operators with several outputs")
def check_recorded_values() -> None:
    graph, _ = torch_graphs.trace_to_graph(lambda x: [(x > 0), *x.unbind()], [torch.ones(1, 3)])
    compared, parts = [node for node in graph.nodes if node.op == "call_function"][:2]
    same(tuple(torch_operators.recorded_value(compared).shape), (1, 3))
    same(torch_operators.recorded_dtype(compared), torch.bool)
    same(
        (torch_operators.recorded_value(parts), torch_operators.recorded_dtype(parts)), (None, None)
    )


@relies("whence.tracing", "`torch.ops.mkldnn._linear_pointwise`, `torch._C._get_mkldnn_enabled`")
def check_product_by_onednn() -> None:
    if torch_products.ONEDNN_PRODUCT is None:
        return
    x, weight, bias = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([5.0])
    same(torch_products.multiply_quickly(x, weight, bias).tolist(), [[16.0]])
    with torch.backends.mkldnn.flags(enabled=False):
        same(torch._C._get_mkldnn_enabled(), False)


@relies("whence.tracing", "`torch._C._functorch.is_functorch_wrapped_tensor`")
def check_wrapped_tensors() -> None:
    is_wrapped, found = torch._C._functorch.is_functorch_wrapped_tensor, []
    torch.func.vmap(lambda x: found.append(is_wrapped(x)) or x)(leaf(2))
    same((found, is_wrapped(leaf(2))), ([True], False))


@relies("whence.tracing", "`torch.autograd.forward_ad._current_level`")
def check_forward_mode() -> None:
    with torch.autograd.forward_ad.dual_level():
        same(internals.is_forward_mode(), True)
    same(internals.is_forward_mode(), False)


@relies("whence.engine.compiled", "`torch.Tag.dynamic_output_shape`")
def check_dynamic_shape() -> None:
    graph, _ = torch_graphs.trace_to_graph(lambda x: [x.nonzero(), x + 1], [torch.ones(2)])
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    same([torch_operators.has_dynamic_shape(node) for node in nodes], [True, False])


@relies("whence.tracing", "operators without a derivative, and linear maps of quantize_dynamic")
def check_lost_gradient() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)))[0]
        x = leaf(1, 2) * 1
        assert internals.has_lost_gradient(module(x), "linear_dynamic")
    assert internals.is_dynamic_quantized_linear(module)
    assert not internals.is_dynamic_quantized_linear(nn.Linear(2, 2))
    assert not internals.has_lost_gradient(x * 2, "mul")
    assert not internals.has_lost_gradient(x.detach(), "detach")
    assert not internals.has_lost_gradient(torch.zeros_like(x), "zeros_like")
    assert internals.has_lost_gradient(x.detach(), "my_kernel")


@relies("whence.engine.compiled", "the names of operators in `torch.ops.aten`")
def check_operators() -> None:
    def compute(x):
        y = x.detach().view(4) + x.mT.reshape(4)
        return [y[torch.arange(2)], x @ x]

    graph, _ = torch_graphs.trace_to_graph(compute, [torch.ones(2, 2)])
    used = {node.target for node in graph.nodes}
    assert used >= {*torch_operators.VIEWS, torch_operators.INDEX, torch_operators.PRODUCTS[0]}
    assert used & {*torch_operators.IDENTITIES}
    same(torch_operators.RESHAPE(torch.ones(2, 2), [4]).shape, (4,))


@pytest.mark.parametrize("part", CHECKS)
def test_private_part_of_torch(part: str) -> None:
    user, check = CHECKS[part]
    try:
        check()
    except Exception as error:
        pytest.fail(
            f"torch's private part {part} is gone or changed: {user} relies on it "
            f"(torch {torch.__version__}): {type(error).__name__}: {error}"
        )
