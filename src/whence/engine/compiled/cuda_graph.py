"""CudaGraph: a computation on a GPU that is started with a single call.

A GPU waits for Python, which asks for hundreds of short kernels one by one; a CUDA graph holds all
of them, from the pixels to the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class CudaGraph:
    """A computation, captured as a CUDA graph.

    Args:
        compute: Launches kernels only: it waits for none, and copies nothing to the GPU.
        inputs: Tensors like those that it will be given.
    """

    def __init__(
        self, compute: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]
    ) -> None:
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
