"""Recording: the operations of a forward pass, as autograd nodes that hold them.

Autograd is the tape. Each operation of the forward pass becomes one node of autograd's graph that
holds it; whatever only moves numbers about (reshape, slice, cat, ...) stays an ordinary node. So
one forward pass serves any number of backward passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import starmap
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from whence._util.torch_internals import (
    has_lost_gradient,
    is_any_autocast_enabled,
    view_base,
)
from whence.errors import LostGradientError, NoRuleError, TooLargeError, WhenceError
from whence.tracing.addresses import Address, AddressCounter, find_running_module
from whence.tracing.backward import REFUSED
from whence.tracing.intervention import Intervention
from whence.tracing.ops.attention import (
    AttentionSite,
    find_upstream_softmax,
    reads_matrix_product,
)
from whence.tracing.ops.base import Operation, is_traced
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.guard import Guard
from whence.tracing.ops.products import MatMul
from whence.tracing.ops.softmax import SOFTMAX
from whence.tracing.recorded_node import RecordedNode
from whence.tracing.segments import Bounds, Segments

# Kinds that every rule set has: no need to note where they were called.
_COMMON_KINDS = frozenset(("linear", "matmul", "add", "sum", "pass"))
_NO_BOUNDS = Bounds()

LISTS = (list, tuple)
"""What arguments may hold values in."""

CHECKPOINT = (
    "Part of the model runs inside of torch.utils.checkpoint, which hides its calls. Switch "
    "gradient checkpointing off in the model that you explain."
)
"""The message for calls that are hidden by gradient checkpointing."""


class TraceEntry(NamedTuple):
    """A recorded operation, and its node in the graph."""

    operation: Operation
    node: Node

    @property
    def inputs(self) -> tuple[GradientEdge, ...]:
        """Where its inputs are in the graph."""
        return tuple(starmap(GradientEdge, self.node.next_functions))

    @property
    def output(self) -> GradientEdge:
        """Where its output is in the graph."""
        return GradientEdge(self.node, 0)


class InputPlace(NamedTuple):
    """A place where the forward pass begins to depend on one of the model's inputs.

    Attributes:
        name: The argument of the model, by name or position.
        leaf: The pixels or embeddings; the leaf of the graph.
        rows: For each row of embeddings the number of its token id in the argument, counted over
            the whole batch, or -1 where it comes from none; None if the leaf is the argument.
    """

    name: str | int
    leaf: Tensor
    rows: Tensor | None = None


def edge_of(tensor: Tensor | GradientEdge) -> GradientEdge:
    """Where in the graph a tensor is now; it may be overwritten later."""
    if isinstance(tensor, GradientEdge):
        return tensor
    if tensor.is_leaf and tensor.requires_grad:
        return get_gradient_edge(tensor)
    return GradientEdge(tensor.grad_fn, tensor.output_nr)  # type: ignore[arg-type]


def start_tracing(value: Tensor) -> Tensor:
    """A value that is followed from here on, whatever it was made of."""
    return value if is_traced(value) else value.detach().requires_grad_().clone()


def flatten_lists(values: Iterable[Any]) -> Iterator[Any]:
    """Values, and what lists and tuples among them hold."""
    for value in values:
        if isinstance(value, LISTS):
            yield from value
        else:
            yield value


class Recording:
    """The operations of a forward pass that runs, or has run.

    Args:
        batch: Number of samples.
        guard: Looks at values.
        intervention: How the run differs from the model's own forward pass.
        module_names: Paths of the model's modules, by id, for messages.
        bounds: How many bytes it may keep. Attention with larger maps is recorded without them, to
            be read by sites.

    Attributes:
        sites: The attention sites that the logits depend on, nearest the input first.
        inputs: Where the dependence on the explained inputs begins.
        entries: The recorded operations in their order.
        refused: Nodes that gradients pass, but not relevance.
        overwrites: Nodes of the graph that overwrite the whole of a tensor.
        copies: For tensors that were overwritten, where what was written comes from.
        kept_bytes: How much the outputs of operations take.
        addresses: Where operations were computed, if the intervention asks for it.
        attention_problem: A sentence on why attention cannot be read; empty if it can.
        projected: Constants that a recorded projection read: streams before their first attention.
    """

    def __init__(
        self,
        batch: int,
        guard: Guard,
        intervention: Intervention,
        module_names: Mapping[int, str],
        bounds: Bounds = _NO_BOUNDS,
    ) -> None:
        self.batch = batch
        self.guard = guard
        self.intervention = intervention
        self.bounds = bounds
        self.segments = Segments(bounds.segment, bounds.block, bounds.by_gradients)
        self.sites: list[AttentionSite] = []
        self.inputs: list[InputPlace] = []
        self.entries: list[TraceEntry] = []
        self.refused: set[Node] = set()
        self.overwrites: set[Node] = set()
        self.copies: dict[GradientEdge, GradientEdge] = {}
        self.kept_bytes = 0
        self.addresses: list[Address] = []
        self._address_counter = AddressCounter()
        self.attention_problem = ""
        self.projected: list[Tensor] = []
        self._module_names = module_names
        self._operation_count = intervention.refill.start if intervention.refill else 0
        self._is_edited = False
        self._recorder: AbstractContextManager[Any] | None = None
        self._pending_softmaxes: dict[Operation, Tensor] = {}  # not yet seen to weigh values
        self._routing: set[Node] = set()  # nodes known to route relevance, or to refuse it

    @property
    def leaves(self) -> list[Tensor]:
        """The pixels or embeddings where the dependence on the explained inputs begins."""
        return [place.leaf for place in self.inputs]

    @property
    def is_block_again(self) -> bool:
        """Whether a block is called again, of which little else is in memory."""
        refill = self.intervention.refill
        return refill is not None and refill.is_of_block

    def start_recording(self, recorder: AbstractContextManager[Any]) -> None:
        """Say which mode records, so that calls made while recording can be recorded too."""
        self._recorder = recorder

    def stop_recording(self) -> None:
        """Free what is needed while recording only."""
        self._recorder = None
        self._pending_softmaxes.clear()
        self._routing.clear()

    def active(self) -> AbstractContextManager[Any]:
        """While this is entered, torch calls are recorded."""
        if self._recorder is None:
            raise RuntimeError("The forward pass is over: nothing can be recorded any more.")
        return self._recorder

    def follow(self, value: Tensor, name: str | int, rows: Tensor | None = None) -> Tensor:
        """Follow pixels or embeddings from here on, or those of the intervention."""
        given = self.intervention.inputs if self.intervention.of in (None, name) else None
        number = sum(place.name == name for place in self.inputs)
        leaf = value.detach().requires_grad_() if given is None else given[number]
        self.inputs.append(InputPlace(name, leaf, rows))
        copy = leaf.clone()  # because the model may write to it
        self.mark_routing(copy, ())
        return copy

    def apply(self, operation: Operation, *inputs: Tensor) -> Tensor:
        """Perform an operation and record it."""
        dtype: torch.dtype | None = inputs[0].dtype
        for tensor in inputs:
            upstream = getattr(tensor.grad_fn, "operation", None)
            if upstream is not None:
                upstream.reader_count += 1
            if tensor.dtype != dtype:
                dtype = None
        operation.guard, operation.batch, operation.input_type = self.guard, self.batch, dtype
        operation.index = self._operation_count
        self._operation_count += 1
        intervention, edit = self.intervention, None
        if intervention.edits or intervention.finds_addresses:
            self.addresses.append(self._address_counter.next_address(self._module_names))
            edit = intervention.edits.get(self.addresses[-1])
        if edit is not None and edit.inputs is not None:
            inputs, operation.input_type = edit.inputs(*inputs), None
        rules = intervention.rules
        if is_any_autocast_enabled():
            with torch.autocast(inputs[0].device.type, enabled=False):
                output: Tensor = RecordedNode.apply(operation, rules, *inputs)
        else:
            output = RecordedNode.apply(operation, rules, *inputs)
        if operation.name == SOFTMAX:
            operation.where = self.where()
            self._pending_softmaxes[operation] = output
        if intervention.refill is not None:
            intervention.refill.take(operation)
        self._is_edited |= edit is not None
        if not intervention.keeps_operations(self._is_edited):
            operation.release()
        else:
            output_bytes = output.nbytes
            self.kept_bytes += output_bytes
            if self.kept_bytes > self.bounds.all:
                raise TooLargeError
            self.segments.add(operation, output_bytes, output.grad_fn)
            self.entries.append(TraceEntry(operation, output.grad_fn))  # type: ignore[arg-type]
        return output if edit is None or edit.output is None else start_tracing(edit.output(output))

    def note_attention(self, product: MatMul, a: Tensor, b: Tensor) -> None:
        """Note an attention site if a factor of the product a b came out of a softmax."""
        for factor in (a, b):
            softmax = find_upstream_softmax(factor)
            if softmax is not None:
                self._pending_softmaxes.pop(softmax, None)
                softmax.in_attention = product.in_attention = True
                product.a_is_attention_map = getattr(a.grad_fn, "operation", None) is softmax
                site = AttentionSite(factor, product, self.where(), keys_first=factor is b)
                self.sites.append(site)
                return

    def note_constant_values(self, factor: Tensor) -> None:
        """Note that a map weighs values that do not depend on the input: it moves nothing of it."""
        softmax = getattr(factor.grad_fn, "operation", None)
        if softmax is not None:  # what was moved since may be heads that are mixed
            self._pending_softmaxes.pop(softmax, None)

    def note_chunked_attention(
        self, attention: ChunkedAttention, shape: tuple[int, ...], output: Tensor
    ) -> None:
        """Note an attention site that has no maps; they would have this shape."""
        weights = torch.empty(shape, device="meta")
        site = AttentionSite(weights, attention, self.where(), output=edge_of(output))
        self.sites.append(site)

    def refuse(self, result: Any, name: str) -> Any:
        """Let gradients pass the outputs of an unknown call, but not relevance.

        Raises:
            LostGradientError: Gradients do not pass it either.
        """
        where = self.where()
        for output in flatten_lists((result,)):
            if has_lost_gradient(output, name):
                raise LostGradientError.at_call(name, where)
            if is_traced(output) and output.grad_fn is not None:
                self._routing.add(output.grad_fn)
                self._refuse_relevance(output.grad_fn, name, where)
        return result

    def passes_relevance(self, node: Node) -> bool:
        """Whether a node is known, so that relevance can pass it."""
        return hasattr(node, "operation") or (node in self._routing and node not in self.refused)

    def mark_move(self, result: Tensor, before: Node | None) -> bool:
        """Know the one node that has made a tensor of another as routing; false if it is not so."""
        node = result.grad_fn
        if node is None or node is before or hasattr(node, "operation"):
            return False
        edges = node.next_functions
        if len(edges) != 1 or edges[0][0] is not before:
            return False
        self._routing.add(node)
        return True

    def mark_routing(self, result: Any, before: Iterable[Node | None]) -> Any:
        """Know the nodes between a call's inputs and its outputs as routing."""
        known = set(before)
        if isinstance(result, Tensor):  # nearly always one node, downstream of an input
            node = result.grad_fn
            if node is None or node in known or result.is_leaf:
                return result
            edges = node.next_functions
            if len(edges) == 1 and edges[0][0] in known and not hasattr(node, "operation"):
                self._routing.add(node)
                return result
        outputs = flatten_lists((result,))
        waiting = [output.grad_fn for output in outputs if is_traced(output)]
        while waiting:
            node = waiting.pop()
            if node is None or node in known or node in self._routing:
                continue
            if not hasattr(node, "operation"):
                self._routing.add(node)
                waiting.extend(upstream for upstream, _ in node.next_functions)
        return result

    def preserve(self, tensor: Tensor) -> None:
        """Copy what operations keep of this tensor's memory, which is about to be overwritten."""
        for entry in self.entries:
            entry.operation.preserve(tensor)
        self.segments.preserve(tensor)
        if self.intervention.refill is not None:
            self.intervention.refill.preserve(tensor)

    def overwrite(self, tensor: Tensor, value: Tensor) -> Tensor:
        """Write a value into a tensor, as a call in place does."""
        if value is not tensor:
            self.preserve(tensor)
            before = (tensor.grad_fn, value.grad_fn)
            self.mark_routing(tensor.copy_(value), before)
            base = view_base(tensor)
            if base is not None and base.numel() == tensor.numel() and base.grad_fn is not None:
                self.overwrites.add(base.grad_fn)
            if is_traced(value) and value.shape == tensor.shape:
                self.copies[edge_of(tensor)] = edge_of(value)
        return tensor

    def check_complete(self, logits: Tensor) -> None:
        """See that nothing was missed between the first call and the logits.

        Autograd functions that the model brought along and calls that were never seen, from
        TorchScript say, refuse relevance: it must not pass them in silence.

        An attention map that was lost between its softmax and the values is a problem of attention.

        Raises:
            WhenceError: Calls were hidden by gradient checkpointing.
        """
        seen: set[Node | None] = {None}
        waiting = [logits.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            known = node in self._routing or hasattr(node, "operation") or not node.next_functions
            if not known:
                name = node.name().rstrip("0123456789").removesuffix("Backward")
                if name == "CheckpointFunction":
                    raise WhenceError(CHECKPOINT)
                self._refuse_relevance(node, name, "a part of the model that hides its calls")
            waiting.extend(upstream for upstream, _ in node.next_functions)
        # What the logits do not depend on takes no part in explaining them.
        self.sites = [s for s in self.sites if self.entries[s.product.index].output.node in seen]
        for softmax, output in self._pending_softmaxes.items():
            node = output.grad_fn
            if node is not None and node in seen and reads_matrix_product(node):
                self.attention_problem = (
                    f"The attention computed in {softmax.where} could not be followed to the "
                    f"values that it weighs, so the model cannot be explained by its attention."
                )

    def _refuse_relevance(self, node: Any, name: str, where: str) -> None:
        """Have an autograd node raise when relevance, and not a gradient, comes through it."""
        rules = self.intervention.rules
        node.metadata[REFUSED] = name, where
        self.refused.add(node)
        if rules is not None:  # others will call autograd's own engine

            def refuse(_: Any) -> None:
                raise NoRuleError.at_operation(rules.name, name, where)

            node.register_prehook(refuse)

    def where(self, kind: str = "") -> str:
        """The module whose forward is running, for messages."""
        if kind in _COMMON_KINDS:
            return ""
        found = find_running_module(self._module_names)
        if found is None:
            return "the model's forward"
        path, of = found
        return f"module '{path}' ({of})" if path else f"{of}.forward"
