"""Decomposition: what every token of the input contributes to any value of the forward pass.

The model runs once more, with a row for each token of a sample. The row's values are that token's
part of the sample's values: what enters the first block is zero but for the token. Operations are
edited so that they are linear, at the values of the recorded pass. The parts of a value then sum to
it, which is checked.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from whence.errors import WhenceError
from whence.methods.shared.block_vectors import find_resolution
from whence.methods.shared.value_vectors import probe_norm
from whence.tracing import Edit
from whence.tracing.graph import AttentionLayer, Block, find_projection, find_structure
from whence.tracing.graph.nodes import is_scaling, operation_of
from whence.tracing.ops.attention import AttentionSite
from whence.tracing.ops.base import Operation
from whence.tracing.ops.function import Function, is_norm
from whence.tracing.ops.products import Linear, MatMul
from whence.tracing.ops.sums import Add, Shift
from whence.tracing.recording import edge_of, start_tracing
from whence.tracing.trace import Trace
from whence.tracing.views import find_dependent

# How far a sum of parts may be from the value, in units of what the type resolves.
_ROUNDING = 1e3


class Decomposition:
    """Edits of a run in which each row is the part of one token in one sample.

    Args:
        trace: The recorded forward pass.
        layers: Its layers of attention.
        blocks: Its blocks.

    Raises:
        WhenceError: The target depends on the input in other ways, or some operation cannot be made
            linear.
    """

    def __init__(
        self, trace: Trace, layers: Sequence[AttentionLayer], blocks: Sequence[Block]
    ) -> None:
        _require_start(trace, blocks[0])
        self._trace, self._start, self._input = trace, blocks[0].input_edge, blocks[0].input
        shape = self._input.shape
        if len(shape) != 3 or shape[0] != trace.batch:
            raise WhenceError(
                f"What enters the first block has the shape {tuple(shape)}, and this method needs "
                f"(batch, tokens, width)."
            )
        self.tokens = shape[1]
        self._sites = {site.product.index: site for one in layers for site in one.sites}
        self._skips = {block.skip_addition.index for block in blocks}
        self._inside = {index for block in blocks for index in _list_inside(trace, block)}
        # Before the first attention, each token holds its own part alone.
        self._inside -= set(_list_value_path(trace, blocks[0]))
        self._operations = self._find_operations()

    def make_edits(self, samples: Tensor) -> dict[int, Edit]:
        """Edits for rows of these samples: for each sample, a row for each of its tokens."""
        run = _Run(self._trace.batch, samples, self.tokens)
        parts = run.split_input(self._input)
        edits = {one.index: self._edit(one, run) for one in self._operations}
        start = operation_of(self._start.node)
        if start is not None:
            return {start.index: Edit(output=lambda _: parts), **edits}
        for operation in self._operations:
            places = self._trace.entries[operation.index].inputs
            if self._start in places:
                edit = edits[operation.index]
                edits[operation.index] = _replace_inputs(edit, places.index(self._start), parts)
        return edits

    def _edit(self, operation: Operation, run: "_Run") -> Edit:
        index = operation.index
        if index in self._sites:
            return Edit(inputs=lambda *factors: run.replace_map(self._sites[index], factors))
        if isinstance(operation, Linear | Shift):
            bias = operation.bias if isinstance(operation, Linear) else operation.constant
            if index in self._inside:
                return Edit(output=_strip(bias))
            without = _strip(bias)
            return Edit(output=lambda y: run.share(operation, without(y), bias))
        if isinstance(operation, Function) and is_norm(operation):
            scale, spread, shift = _find_spread(operation)
            return run.replace(operation, lambda x: scale(x) / run.repeat(spread), shift)
        if isinstance(operation, Function) and _is_activation(operation):
            slope = _find_slope(operation)
            return run.replace(operation, lambda x: x * run.repeat(slope), None)
        if index in self._skips:
            return Edit(output=lambda y: run.share(operation, y.detach(), "any"))
        if index in self._inside:
            return Edit()
        return Edit(output=lambda y: run.share(operation, y.detach(), None))

    def _find_operations(self) -> list[Operation]:
        """Operations between what enters the first block and the target, but for maps' own."""
        trace, graph = self._trace, find_structure(self._trace).graph
        start, waiting, found = self._start.node, list(trace.tops), list[Operation]()
        seen = {start}
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            operation = operation_of(node)
            if operation is None:
                sources = [source.node for source in graph.sources(node)]
                if start in sources and operation_of(start) is None:
                    raise WhenceError(_NO_START)
                waiting += sources
                continue
            site = self._sites.get(operation.index)
            if site is not None:
                waiting.append(trace.entries[operation.index].inputs[site.values_number].node)
            else:
                waiting += [source.node for source in graph.sources(node)]
            _require_linear(operation, site)
            found.append(operation)
        return found


class _Run:
    """The rows of some samples: for each of them, one for each token.

    Values are (samples x tokens x inner, ...), where what comes after the tokens belongs to a row.
    """

    def __init__(self, batch: int, samples: Tensor, tokens: int) -> None:
        self._batch, self._samples, self._tokens = batch, samples, tokens

    def split_input(self, value: Tensor) -> Tensor:
        """Each token's part of what enters the first block: itself, and zeros elsewhere."""
        own = torch.eye(self._tokens, dtype=value.dtype, device=value.device)
        return (value.detach()[self._samples][:, None] * own[..., None]).flatten(0, 1)

    def select(self, value: Tensor) -> Tensor:
        """The recorded value of the samples: (samples, inner, ...)."""
        inner = len(value) // self._batch
        return value.detach().reshape(self._batch, inner, *value.shape[1:])[self._samples]

    def repeat(self, value: Tensor) -> Tensor:
        """A recorded value for every row, as the row has it."""
        selected = self.select(value)
        repeated = selected[:, None].expand(-1, self._tokens, *selected.shape[1:])
        return repeated.reshape(-1, *value.shape[1:])

    def replace_map(self, site: AttentionSite, factors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The factors of an attention's product, with the recorded map."""
        changed, number = list(factors), 1 - site.values_number
        maps = site.split_heads(site.weights.detach(), self._batch)[self._samples]
        maps = maps.repeat_interleave(self._tokens, 0)
        maps = maps.transpose(0, 1) if site.heads_first else maps
        maps = maps.mT if site.keys_first else maps
        changed[number] = maps.reshape(factors[number].shape)
        return tuple(changed)

    def replace(
        self, operation: Operation, function: Callable[[Tensor], Tensor], bias: Tensor | None
    ) -> Edit:
        """An edit that computes the parts of the output by another function, and a bias."""
        kept: list[Tensor] = []

        def keep(*inputs: Tensor) -> tuple[Tensor, ...]:
            kept.append(inputs[0].detach())
            return inputs

        return Edit(inputs=keep, output=lambda _: self.share(operation, function(kept.pop()), bias))

    def share(self, operation: Operation, parts: Tensor, bias: Tensor | str | None) -> Tensor:
        """Share what parts lack to the recorded output, which must be the bias.

        Args:
            operation: The operation.
            parts: What it makes of the parts.
            bias: The bias; ``"any"`` for one that is the same for all tokens.
        """
        output = operation.output.detach()
        if output.dim() == 3 and output.shape[1] == self._batch != len(output):  # tokens first
            swapped = copy.copy(operation)
            swapped.output = output.transpose(0, 1)
            return self.share(swapped, parts.transpose(0, 1), bias).transpose(0, 1)
        shape = parts.shape
        if len(output) % self._batch or len(shape) != output.dim():
            raise self._refuse(operation)
        whole = self.select(output)
        if parts.numel() != whole.numel() * self._tokens:
            raise self._refuse(operation)
        parts = parts.reshape(len(whole), self._tokens, *whole.shape[1:])
        rest = whole - parts.sum(1)
        same = rest.flatten(0, -2).mean(0) if isinstance(bias, str) else bias
        apart = (rest if same is None else rest - same).abs().amax()
        size = torch.maximum(whole.abs().amax(), parts.abs().amax())
        if apart > _ROUNDING * find_resolution(parts.dtype) * size:
            raise self._refuse(operation)
        if bias is not None:
            weights = (parts * rest[:, None]).sum(-1, keepdim=True).abs()
            total = weights.sum(1, keepdim=True)
            parts = parts + weights / torch.where(total > 0, total, 1) * rest[:, None]
        return parts.reshape(shape)

    def _refuse(self, operation: Operation) -> WhenceError:
        return WhenceError(
            f"What '{operation.name}' in {operation.where or 'the model'} computes of the parts of "
            f"tokens does not sum to what it computes of their sum, so that this method cannot "
            f"follow it. 'input_x_gradient' with gradients='balanced' is near to it, and works."
        )


_NO_START = (
    "What enters the first block is only moved about before and after, so that this method cannot "
    "start there. 'input_x_gradient' with gradients='balanced' is near to it, and works."
)


def _require_start(trace: Trace, first: Block) -> None:
    """Check that the target reads the input through what enters the first block alone."""
    leaves = {edge_of(leaf).node for leaf in trace.leaves}
    cuts = {first.input_edge.node}
    if any(find_dependent(trace.tops, leaves, trace.overwrites, cuts)):
        raise WhenceError(
            "The target reads more of the input than what enters the first block, where this "
            "method starts. Methods at the input, such as 'input_x_gradient', work."
        )


def _replace_inputs(edit: Edit, number: int, value: Tensor) -> Edit:
    """An edit that replaces one input before all else."""

    def replace(*inputs: Tensor) -> tuple[Tensor, ...]:
        changed = (*inputs[:number], start_tracing(value), *inputs[number + 1 :])
        return changed if edit.inputs is None else edit.inputs(*changed)

    return Edit(replace, edit.output)


def _list_value_path(trace: Trace, block: Block) -> list[int]:
    """List the operations from what enters a block to the values of its attention."""
    graph = find_structure(trace).graph
    waiting: list[Node] = []
    for site in block.sites:
        waiting.append(trace.entries[site.product.index].inputs[site.values_number].node)
    seen, found = {block.input_edge.node}, []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        operation = operation_of(node)
        if isinstance(operation, Linear | Shift):
            found.append(operation.index)
        waiting += [source.node for source in graph.sources(node)]
    return found


def _list_inside(trace: Trace, block: Block) -> list[int]:
    """List linear operations whose biases count after the sum with the skip connection."""
    projection = find_projection(trace, block.site, block.skip_addition)
    return [*_list_value_path(trace, block), *(one.index for one in projection)]


def _require_linear(operation: Operation, site: AttentionSite | None) -> None:
    """Refuse an operation that cannot be made linear in one of its inputs."""
    where = operation.where or "the model"
    if site is not None:
        if not isinstance(site.product, MatMul):
            raise WhenceError(
                f"The attention in {site.where} is over so many tokens that its map is not kept, "
                f"which this method needs: give a shorter input, or more memory=…."
            )
        return
    if isinstance(operation, Function):
        known = len(operation.inputs) == 1 and operation.kind in ("pass", "sum")
    elif isinstance(operation, Shift):
        constant = operation.constant
        known = constant.dim() < operation.output.dim() or len(constant) == 1
    else:
        known = isinstance(operation, Linear | Add)
    if not known:
        raise WhenceError(
            f"'{operation.name}' in {where} is of several values that differ between inputs, such "
            f"as a gate or a length, and this method makes each operation linear in one. "
            f"'input_x_gradient' with gradients='balanced' is near to it, and works."
        )


def _is_activation(operation: Function) -> bool:
    """Whether an operation is a function of single numbers other than a scaling."""
    return operation.mixed_dims == 0 and not is_scaling(operation)


def _find_spread(norm: Function) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """Find a normalisation's linear map, denominators, (..., 1), and bias."""
    bias, weight, centres = probe_norm(norm)

    def scale(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True) if centres else x) * weight

    sizes = scale(norm.inputs[0].detach()).norm(dim=-1, keepdim=True)
    spread = sizes / (norm.output - bias).norm(dim=-1, keepdim=True)
    return scale, torch.where(spread.isfinite() & (sizes > 0), spread, 1), bias


def _find_slope(activation: Function) -> Tensor:
    """Compute f(x) / x of an activation; 0 where x is."""
    x = activation.inputs[0].detach()
    return torch.where(x == 0, 0, activation.output / torch.where(x == 0, 1, x))


def _strip(bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """A function that takes a bias off again."""
    return lambda y: y.detach() if bias is None else y.detach() - bias.detach()
