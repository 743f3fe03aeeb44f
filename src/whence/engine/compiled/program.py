"""Run a recorded computation as compiled regions, each compiled once for all repetitions.

An explanation consists of thousands of small operators. Run one by one, each reads and writes whole
tensors, with Python in between; torch's compiler fuses many of them into few kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, fx

from whence._util.torch_graphs import compile_graph
from whence._util.torch_internals import unflatten_tree
from whence.engine.compiled.graph import record_graph
from whence.engine.compiled.regions import Region, split_regions

Output = TypeVar("Output")
# A region's code, with shape, strides, type and device of each of its inputs.
_Key = tuple[str, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], ...]]


class Program(Generic[Output]):
    """A computation on tensors of fixed shapes, compiled region by region at first use.

    Args:
        compute: Takes tensors and returns containers of tensors; it reads no values.
        inputs: Example arguments, whose shapes the program is for.
    """

    def __init__(self, compute: Callable[..., Output], inputs: Sequence[Tensor]) -> None:
        graph, self._constants, self._structure = record_graph(compute, inputs)
        self._regions, self._returned = split_regions(graph)
        self._placeholders = [node.name for node in graph.find_nodes(op="placeholder")]
        self._compiled: dict[_Key, Callable[..., Sequence[Tensor]]] = {}

    @property
    def region_count(self) -> int:
        """How many regions the computation has, equal ones counted each."""
        return len(self._regions)

    def __call__(self, *inputs: Tensor) -> Output:
        """Run the computation on other values."""
        return self.compile(*inputs)

    def compile(self, *inputs: Tensor, advance: Callable[[int], object] = int) -> Output:
        """Run the computation, compiling regions that are not yet.

        Args:
            *inputs: The values.
            advance: Called with the number of regions that are done.
        """
        values = dict(zip(self._placeholders, (*inputs, *self._constants), strict=True))
        with torch.no_grad():
            for region in self._regions:
                results = self._run(region, [values[name] for name in region.inputs])
                values.update(zip(region.outputs, results, strict=True))
                del results
                for name in region.released:
                    del values[name]
                advance(1)
        output: Output = unflatten_tree([values[name] for name in self._returned], self._structure)
        return output

    def _run(self, region: Region, args: list[Tensor]) -> Sequence[Tensor]:
        key = region.code, tuple((x.shape, x.stride(), x.dtype, x.device) for x in args)
        if key not in self._compiled:
            self._compiled[key] = compile_graph(fx.GraphModule({}, region.graph), args)
        return self._compiled[key](*args)


class CudaGraph:
    """A computation on a GPU, captured as a CUDA graph that is started with a single call.

    A GPU waits for Python, which launches hundreds of short kernels one by one; a graph holds all.

    Args:
        compute: Launches kernels only: it waits for none, and copies nothing to the GPU.
        inputs: Tensors like those that it will be given.
    """

    def __init__(
        self, compute: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]
    ) -> None:
        self._compute = compute  # the graph reads its constants where they are, so they must stay
        self._inputs = [x.clone() for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        # Libraries set themselves up when they are first used, and compilers compile.
        with torch.cuda.stream(side_stream):
            compute(*self._inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        torch.cuda.empty_cache()
        with torch.cuda.graph(self._graph):
            self._outputs = compute(*self._inputs)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the graph on other values."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given.detach())
        self._graph.replay()
        return tuple(output.clone() for output in self._outputs)
