"""Record and compile graphs of operators: private parts of torch, as in `torch_internals`."""

from __future__ import annotations

import contextlib
import contextvars
import operator
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary


class TracedGraph(NamedTuple):
    """The operators that a function ran.

    Attributes:
        graph: Takes the inputs, then the constants; returns a list of tensors.
        constants: Tensors that the function read beside its inputs, such as weights.
    """

    graph: fx.Graph
    constants: list[Tensor]


def trace_to_graph(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> TracedGraph:
    """Run a function and record its operators, those of autograd's backward too.

    It does what `make_fx` does for tensors with values, in a tenth of the time.

    Args:
        function: Takes tensors; returns tensors.
        inputs: Its arguments.

    Raises:
        RuntimeError: It looks at values that depend on tensors.
    """
    recorder = _OperatorRecorder(inputs)
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output([recorder.find_node(output) for output in outputs])
    return TracedGraph(recorder.graph, recorder.constants)


class _OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every operator that runs, below autograd, as a node of a graph.

    Args:
        inputs: Tensors that become the inputs of the graph.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants: list[Tensor] = []
        # Tensors must be freed as without a recorder.
        self._nodes: Any = WeakTensorKeyDictionary()
        self._constant_nodes = set[fx.Node]()
        self._whole = set[object]()  # operators that consist of no others
        self._literals = set[fx.Node]()  # their values depend on no tensor
        self._written = set[int]()  # where memory is that was written since
        for number, tensor in enumerate(inputs):
            self._last_input = self.graph.placeholder(f"input_{number}")
            self._track(tensor, self._last_input)

    def find_node(self, tensor: Tensor) -> fx.Node:
        """Find the node that gave a tensor; one that no operator gave becomes a constant."""
        node: fx.Node | None = self._nodes.get(tensor)
        if node is None:
            with self.graph.inserting_after(self._last_input):
                node = self.graph.placeholder(f"constant_{len(self.constants)}")
            self._last_input = node
            self.constants.append(tensor.detach())
            self._constant_nodes.add(node)
            self._track(tensor, node)
        return node

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        facts = _find_facts(func)
        if facts.reads_values:
            if not all(self._is_known(x) for x in (*args, *kwargs.values())):
                raise RuntimeError(f"what is computed depends on values that `{func}` looks at")
            return func(*args, **kwargs)
        if func not in self._whole:
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
            self._whole.add(func)
        tensors: list[Tensor] = []

        def replace(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            tensors.append(value)
            return self.find_node(value)

        sources = map_aggregate((args, kwargs), replace)
        # What is written down in Python becomes a tensor of its own in each run.
        is_literal = func is torch.ops.aten.lift_fresh.default
        node = self.graph.call_function(
            torch.ops.aten.clone.default if is_literal else func, *sources
        )
        if is_literal or (not facts.is_random and all(map(self._is_literal, tensors))):
            self._literals.add(node)
        elif facts.written:
            # All that shares memory with what is written has other values now.
            self._written.update(x.untyped_storage().data_ptr() for x in tensors)
        output = func(*args, **kwargs)
        self._track_outputs(output, node)
        return output

    def _is_known(self, value: object) -> bool:
        """Whether an argument has the same values whatever the inputs are."""
        if not isinstance(value, Tensor) or self._is_literal(value):
            return True
        node = self._nodes.get(value)
        return node is None or node in self._constant_nodes

    def _is_literal(self, tensor: Tensor) -> bool:
        """Whether the values of a tensor depend on no other tensor."""
        is_written = tensor.untyped_storage().data_ptr() in self._written
        return not is_written and self._nodes.get(tensor) in self._literals

    def _track_outputs(self, output: object, node: fx.Node) -> None:
        if isinstance(output, Tensor):
            self._track(output, node)
        elif isinstance(output, list | tuple):
            for number, item in enumerate(output):
                if isinstance(item, Tensor):
                    part = self.graph.call_function(operator.getitem, (node, number))
                    if node in self._literals:
                        self._literals.add(part)
                    self._track(item, part)

    def _track(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[tensor] = node
        node.meta["like"] = tensor.shape, tensor.stride(), tensor.dtype


class ConstantKeeper(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While on, keeps the tensors that operators read and none of them made, such as weights.

    A CUDA graph reads them where they were when it was captured, so that they have to stay there.

    Attributes:
        kept: These tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[Tensor] = []
        # Where memory is that was made while this is on; and that was there before, which stays.
        self._made, self._outside = set[int](), set[int]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _list_tensors((*args, *kwargs.values())):
            place = tensor.untyped_storage().data_ptr()
            if place not in self._made and place not in self._outside:
                self._outside.add(place)
                self.kept.append(tensor.detach())
        for number, name in _find_facts(func).written:
            written = args[number] if number < len(args) else kwargs.get(name)
            places = {one.untyped_storage().data_ptr() for one in _list_tensors((written,))}
            if places & self._outside:
                raise RuntimeError("something is written to a tensor that outlives the computation")
        output = func(*args, **kwargs)
        places = {one.untyped_storage().data_ptr() for one in _list_tensors((output,))}
        self._made |= places - self._outside
        return output


def _list_tensors(values: Sequence[object]) -> list[Tensor]:
    """Tensors among the arguments of an operator, and in lists of them; none without memory."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.numel():
                found.append(value)
        elif isinstance(value, list | tuple):
            found += _list_tensors(value)
    return found


class _OperatorFacts(NamedTuple):
    """What is known of an operator.

    Attributes:
        reads_values: Whether it hands a value to Python.
        is_random: Whether it draws random numbers.
        written: The arguments that it writes to: their numbers and names.
    """

    reads_values: bool
    is_random: bool
    written: tuple[tuple[int, str], ...]


@cache
def _find_facts(func: Any) -> _OperatorFacts:
    """What is known of an operator, found once: a computation calls few, each many times."""
    tags, arguments = func.tags, enumerate(func._schema.arguments)
    return _OperatorFacts(
        reads_values=torch.Tag.data_dependent_output in tags,
        is_random=torch.Tag.nondeterministic_seeded in tags,
        written=tuple(
            (number, one.name)
            for number, one in arguments
            if one.alias_info is not None and one.alias_info.is_write
        ),
    )


# Torch's compiler compiles and loads a small program for each kind of wide registers that the
# processor has, in every process anew. What the C++ compiler says of them is as good.
_UNTRIED_REGISTERS = {"cpp.vec_isa_ok": True}
_MACROS_OF_REGISTERS = {
    "AVX2": ("__AVX2__", "__FMA__"),
    "AVX512": ("__AVX512BW__", "__AVX512DQ__", "__AVX512VL__", "__AVX512VNNI__"),
}


@cache
def knows_registers() -> bool:
    """Tell whether the C++ compiler knows the registers of this processor that torch uses."""
    from torch._inductor import cpp_builder

    macros = _MACROS_OF_REGISTERS.get(torch.backends.cpu.get_cpu_capability(), ("unknown",))
    try:
        command = [cpp_builder.get_cpp_compiler(), "-march=native", "-dM", "-E", "-x", "c++"]
        told = subprocess.run([*command, os.devnull], capture_output=True, text=True, timeout=10)
    except Exception:  # there is no compiler, or none that can be asked
        return False
    return all(f"#define {macro} " in told.stdout for macro in macros)


def compile_graph(
    graph: fx.GraphModule, inputs: Sequence[Tensor]
) -> Callable[..., Sequence[Tensor]]:
    """Compile a graph of operators for inputs of these shapes by torch's inductor."""
    return _compile(graph, inputs, _choose_options() if inputs[0].is_cpu else {})


def _choose_options() -> dict[str, Any]:
    """Settings of torch's compiler for a CPU, unless the user has made them."""
    from torch._inductor import config

    is_open = getattr(config.cpp, "vec_isa_ok", True) is None
    return _UNTRIED_REGISTERS if is_open and knows_registers() else {}


# The least that is compiled as a kernel is.
_EMPTY_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* x) {}
"""


def precompile_header() -> threading.Thread | None:
    """Begin to compile the header of all kernels for a CPU, in a thread that need not be awaited.

    Torch does so where it meets the first kernel, and waits: five seconds for the first time on a
    machine, one in each process. Until then, there is much to do for Python alone.

    Returns:
        The thread, which the process waits for when it ends, so that the header is whole; None
        where a thread would not see the settings made here, as in older releases of torch.
    """
    from torch._inductor import codecache, config

    def work() -> None:
        with contextlib.suppress(Exception):  # torch will meet it again, and say what is wrong
            codecache.CppPythonBindingsCodeCache.load_pybinding_async(["float*"], _EMPTY_KERNEL)

    options = _choose_options()
    with config.patch(options):
        context = contextvars.copy_context()
    if any(context.run(operator.attrgetter(name), config) != options[name] for name in options):
        return None
    thread = threading.Thread(target=context.run, args=(work,))
    thread.start()
    return thread


def _compile(
    graph: fx.GraphModule, inputs: Sequence[Tensor], options: dict[str, Any]
) -> Callable[..., Sequence[Tensor]]:
    import torch._inductor
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Inductor's cache on disk is used only where there are shapes that might be symbols.
    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes, static_shapes=True, allow_non_fake_inputs=True)
    compiled: Callable[..., Sequence[Tensor]]
    with tracing(TracingContext(fake)):
        compiled = torch._inductor.compile(graph, list(inputs), options=options)
    return compiled
