"""Run a recorded computation: operator by operator, or by compiled regions of them.

An explanation consists of thousands of small operators. Recorded, they run without the Python that
decided on them. Each still reads and writes whole tensors; torch's compiler fuses many of them into
few kernels. Regions that repeat are compiled once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, fx

from whence._util.torch_graphs import ConstantKeeper, compile_graph
from whence._util.torch_internals import unflatten_tree
from whence.engine.compiled.graph import RecordedGraph, record_graph, write_nothing_in_place
from whence.engine.compiled.joining import join_products
from whence.engine.compiled.multiplying import multiply_graph_quickly
from whence.engine.compiled.padding import pad_attention
from whence.engine.compiled.regions import Region, split_regions

# Where nothing repeats, a C++ compiler takes about 15 seconds for so many, and 50 for 2,000.
_MOST_OPERATORS = 500

Output = TypeVar("Output")
_RunRegion = Callable[..., Sequence[Tensor]]
# A region's code, with shape, strides, type and device of each of its inputs.
_Key = tuple[str, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], ...]]


class Program(Generic[Output]):
    """A computation on tensors of fixed shapes, recorded as operators, which can be compiled.

    Args:
        compute: Takes tensors and returns containers of tensors; it reads no values.
        inputs: Example arguments, whose shapes the program is for.
    """

    def __init__(self, compute: Callable[..., Output], inputs: Sequence[Tensor]) -> None:
        self._recorded: RecordedGraph | None = record_graph(compute, inputs)
        self._constants, self._structure = self._recorded.constants, self._recorded.structure
        self._operators: _RunRegion = fx.GraphModule({}, self._recorded.graph).forward
        self._regions: list[Region] = []
        self._runs: list[_RunRegion] = []  # of the regions, once they are compiled
        self._placeholders: list[str] = []
        self._returned: list[str] = []

    def __call__(self, *inputs: Tensor) -> Output:
        """Run the computation on other values."""
        if self._runs:
            return self._run_regions(inputs, lambda number, args: self._runs[number](*args))
        with torch.no_grad():
            values = self._operators(*inputs, *self._constants)
        output: Output = unflatten_tree(values, self._structure)
        return output

    def split(self, *inputs: Tensor) -> int:
        """Split the computation into regions that can be compiled; return how many there are."""
        if self._recorded is not None:
            graph, *_ = write_nothing_in_place(self._recorded, inputs)
            self._recorded = None
            on_gpu = _is_for_gpu(inputs)
            if on_gpu:
                placeholders = graph.find_nodes(op="placeholder")
                join_products(graph, placeholders[len(inputs) :])
                pad_attention(graph)
            elif inputs[0].is_cpu:
                multiply_graph_quickly(graph)
            # On a CPU, to compute something again takes longer than to read it.
            self._regions, self._returned = split_regions(graph, recompute=on_gpu)
            self._placeholders = [node.name for node in graph.find_nodes(op="placeholder")]
        return len(self._regions)

    def compile(
        self, *inputs: Tensor, fewest: int = 1, advance: Callable[[int], object] = int
    ) -> Output:
        """Compile regions, and run the computation by them.

        Args:
            *inputs: The values.
            fewest: Regions that occur less often stay as they were recorded, if others do not.
            advance: Called with the number of regions that are done.

        Raises:
            RuntimeError: None occurs often enough, and they are too long to compile them all.
        """
        self.split(*inputs)
        times = Counter(region.code for region in self._regions)
        if max(times.values()) < fewest:
            count = sum(len(region.graph.nodes) for region in self._regions)
            if count > _MOST_OPERATORS:
                raise RuntimeError(f"nothing repeats, and to compile all {count} takes too long")
            fewest = 1
        recorded: dict[str, _RunRegion] = {}
        compiled: dict[_Key, _RunRegion] = {}
        runs: list[_RunRegion] = []

        def run(number: int, args: list[Tensor]) -> Sequence[Tensor]:
            region = self._regions[number]
            if times[region.code] >= fewest:
                key = region.code, tuple((x.shape, x.stride(), x.dtype, x.device) for x in args)
                if key not in compiled:
                    compiled[key] = compile_graph(_copy_graph(region), args)
                runs.append(compiled[key])
            else:
                if region.code not in recorded:
                    recorded[region.code] = fx.GraphModule({}, region.graph).forward
                runs.append(recorded[region.code])
            results = runs[number](*args)
            advance(1)
            return results

        output = self._run_regions(inputs, run)
        self._runs = runs
        return output

    def restore(self) -> None:
        """Run all operators as they were recorded."""
        self._runs = []

    def _run_regions(
        self, inputs: Sequence[Tensor], run: Callable[[int, list[Tensor]], Sequence[Tensor]]
    ) -> Output:
        values = dict(zip(self._placeholders, (*inputs, *self._constants), strict=True))
        with torch.no_grad():
            for number, region in enumerate(self._regions):
                results = run(number, [values[name] for name in region.inputs])
                values.update(zip(region.outputs, results, strict=True))
                del results
                for name in region.released:
                    del values[name]
        output: Output = unflatten_tree([values[name] for name in self._returned], self._structure)
        return output


def _is_for_gpu(inputs: Sequence[Tensor]) -> bool:
    return inputs[0].is_cuda


def _copy_graph(region: Region) -> fx.GraphModule:
    """A region's graph for the compiler, which changes it."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(region.graph, {}))
    return fx.GraphModule({}, graph)


class GraphMemory:
    """The memory that CUDA graphs work in. They can share it, since one runs at a time.

    A graph of one step stays in it: torch gives up memory that is left by the last graph, and no
    other could be captured there.

    Attributes:
        pool: The memory, as torch knows it.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Take other memory from now on: torch may capture no more where a capture has failed."""
        self.pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        number = torch.zeros(1, device="cuda")
        with torch.cuda.graph(self._graph, pool=self.pool):
            self._kept = number + 1


class CudaGraph:
    """A computation on a GPU, captured as a CUDA graph that is started with a single call.

    A GPU waits for Python, which launches hundreds of short kernels one by one; a graph holds all.

    Args:
        compute: Launches kernels only: it waits for none, and copies nothing to the GPU.
        inputs: Tensors like those that it will be given.
        memory: The memory that it works in; some of its own if left out. Nothing of a run is needed
            by the next.
        has_run: Whether all of it has run on the GPU just before, and its constants are its own
            affair: it is then captured at once, and all that it reads is kept.

    Attributes:
        held_bytes: How much memory was taken from the GPU for it, and stays.
    """

    def __init__(
        self,
        compute: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        memory: GraphMemory | None = None,
        has_run: bool = False,
    ) -> None:
        self._inputs = [x.clone() for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        if not has_run:
            self._set_up(compute)
        pool = None if memory is None else memory.pool
        before = torch.cuda.memory_reserved()
        # Other threads may use the GPU meanwhile.
        mode = "thread_local"
        keeper = ConstantKeeper() if has_run else contextlib.nullcontext()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode=mode), keeper:
                self._outputs = tuple(output.detach() for output in compute(*self._inputs))
        finally:
            torch.cuda.set_stream(stream)  # where a capture fails, torch may stay in its own
        # The graph reads constants where they are, so they must stay.
        self._kept = keeper.kept if isinstance(keeper, ConstantKeeper) else compute
        self.held_bytes = torch.cuda.memory_reserved() - before

    def _set_up(self, compute: Callable[..., object]) -> None:
        """Run once: libraries set themselves up when they are first used, and compilers compile."""
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.empty_cache()  # what another stream has freed cannot be used by this one
        with torch.cuda.stream(side_stream):
            compute(*self._inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        torch.cuda.empty_cache()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the graph on other values."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given.detach())
        self._graph.replay()
        return tuple(output.clone() for output in self._outputs)
