"""The function mode that watches one forward pass and puts its operations on the tape."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodWrapperType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence.engine.compiled.program import answer
from whence.errors import TooLargeError, WhenceError
from whence.rules import RuleSet, no_rule
from whence.tracing import calls as spelling
from whence.tracing.backward import REFUSED
from whence.tracing.calls import Call, is_traced
from whence.tracing.graph.sites import SOFTMAX, AttentionSite, softmax_behind, weighs_products
from whence.tracing.ops.attention import Attention
from whence.tracing.ops.operations import Function, MatMul, Operation, Recorded
from whence.tracing.tape import Tape

# Kinds that every rule set has: no need to note where they were called.
_COMMON = frozenset(("linear", "matmul", "add", "sum", "pass"))
# Ways to look up the embeddings of token ids.
_LOOKUPS = frozenset(("embedding", "__getitem__", "index_select"))


# Attributes that are no tensors, which models ask for all the time.
_FACTS = frozenset(("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "is_leaf"))


# Ways to look at the one value of a tensor.
_LOOKS: dict[str, Callable[[Any], Any]] = {
    "item": lambda value: value,
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__index__": operator.index,
}


class Step(NamedTuple):
    """A recorded operation, and where its inputs and its output are in the graph."""

    operation: Operation
    inputs: tuple[GradientEdge, ...]
    output: GradientEdge


class Edit(NamedTuple):
    """A change of one operation's inputs, or of its output, while a model runs."""

    inputs: Callable[..., tuple[Tensor, ...]] | None = None
    output: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Run:
    """What a run of the model does otherwise than the model's own forward pass.

    Attributes:
        inputs: Pixels or embeddings to be used in the place of the model's own.
        edits: Changes, by the index of the operation.
        rules: How gradients that others compute through this run are to be read.
        forward_only: Whether nothing will be read backward, so that nothing need be kept.
        constants: Whether projections of what does not depend on the input are followed too, so
            that the self-attention of such a sequence can be read. A relevance reading is then
            another one.
    """

    inputs: Tensor | None = None
    edits: Mapping[int, Edit] = field(default_factory=dict)
    rules: RuleSet | None = None
    forward_only: bool = False
    constants: bool = False


def _traced(value: Tensor) -> Tensor:
    """A value that is followed from here on, whatever it was made of."""
    return value if is_traced(value) else value.detach().requires_grad_().clone()


def edge_of(tensor: Tensor) -> GradientEdge:
    """Where in the graph a tensor is now; it may be overwritten later."""
    if tensor.is_leaf and tensor.requires_grad:
        return get_gradient_edge(tensor)
    return GradientEdge(tensor.grad_fn, tensor.output_nr)  # type: ignore[arg-type]


class Recorder(TorchFunctionMode):
    """Sees every torch call of a forward pass and records those that depend on the input.

    Args:
        names: Paths of the model's modules, by id, for messages.
        ignore_no_grad: Whether to follow the input where the model itself switches gradients off.
        run: What is done otherwise than in the model's own forward pass.
        bound: How many bytes the operations may keep.
        map_bytes: Attention whose maps have more bytes than this is recorded as one operation.

    Attributes:
        tape: What the recorded operations share.
        steps: The recorded operations in their order.
        copies: Nodes of the graph that overwrite the whole of a tensor.
        sites: The attention maps found, nearest the input first.
        grids: Spatial sizes of convolution outputs: one of them is the grid of patches.
        inputs: The leaves where the dependence on the input begins: pixels or embeddings.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        ignore_no_grad: bool = False,
        run: Run | None = None,
        bound: float | None = None,
        map_bytes: float = math.inf,
    ) -> None:
        super().__init__()
        self.map_bytes = map_bytes
        self._bound = math.inf if bound is None else bound
        self.tape = Tape()
        self.run = Run() if run is None else run
        self.tape.rules = self.run.rules
        self.tape.forward_only = self.run.forward_only
        self.steps: list[Step] = []
        self.copies: set[Any] = set()
        self.sites: list[AttentionSite] = []
        self.grids: list[tuple[int, ...]] = []
        self.inputs: list[Tensor] = []
        self._names = names
        self._ignore_no_grad = ignore_no_grad
        self._ids: Tensor | None = None
        self._softmaxes: dict[Operation, Tensor] = {}  # those not yet seen to weigh values
        self._routes: set[Any] = set()  # autograd nodes known to route relevance, or to refuse it

    def begin(self, main: Tensor) -> Tensor:
        """Start following a model's input; token ids are followed from their embeddings on."""
        self.tape.batch = main.shape[0]
        if not main.is_floating_point():
            self._ids = main
            return main
        return self._follow(main)

    def _follow(self, value: Tensor) -> Tensor:
        given = self.run.inputs
        leaf = value.detach().requires_grad_() if given is None else given
        self.inputs.append(leaf)
        copy = leaf.clone()  # because the model may write to it
        self._routed(copy, ())
        return copy

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Handle one call; while this runs, the mode is off."""
        name = spelling.name_of(func)
        if name in _FACTS:
            return func(*args)
        if name in _LOOKS:
            return _LOOKS[name](answer(args[0]))
        if name == "_set_grad_enabled" and self._ignore_no_grad:
            return None
        args, kwargs = _constants(args), {k: _constant(v) for k, v in (kwargs or {}).items()}
        in_place = name == "__setitem__" or (name[-1] == "_" and name[-2:] != "__")
        constant = not any(map(is_traced, _flat(args, kwargs)))
        if constant and not (self.run.constants and name == "multi_head_attention_forward"):
            if in_place and isinstance(args[0], Tensor):
                self.tape.preserve(args[0])
            result = func(*args, **kwargs)
            if is_lookup(name, _flat(args, kwargs), result, self._ids):
                return self._follow(result)
            begins = self.run.constants and name == "linear" and result.dim() > 2
            return self._routed(_traced(result), ()) if begins else result
        if isinstance(func, MethodWrapperType) and name not in spelling.ROUTING:
            return func(*args, **kwargs)  # an attribute, such as shape
        if in_place:
            return self._in_place(Call(name, func, args, kwargs))
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
            return self._overwrite(args[0], spelling.spell(self, Call(name, func, args, kwargs)))
        return spelling.spell(self, Call(name, func, args, kwargs))

    def _in_place(self, call: Call) -> Any:
        """Compute out of place, then write the result: what was kept before must stay as it was."""
        name = call.name.removesuffix("_")
        plain = next((getattr(of, name) for of in (Tensor, F, torch) if hasattr(of, name)), None)
        if call.name == "__setitem__" or name in spelling.ROUTING or name == "copy":
            self.tape.preserve(call.args[0])
            return self.route(call)
        if plain is None:
            self.tape.preserve(call.args[0])
            return self.refuse(call.run(), call.name)
        value = spelling.spell(self, Call(name, plain, call.args, call.kwargs))
        return self._overwrite(call.args[0], value)

    def _overwrite(self, tensor: Tensor, value: Tensor) -> Tensor:
        if value is not tensor:
            self.tape.preserve(tensor)
            before = (tensor.grad_fn, value.grad_fn)
            self._routed(tensor.copy_(value), before)
            base = tensor._base if tensor._is_view() else tensor
            if base is not None and base.numel() == tensor.numel():
                self.copies.add(base.grad_fn)
        return tensor

    def apply(self, operation: Operation, *inputs: Tensor) -> Tensor:
        """Perform an operation and record it."""
        for tensor in inputs:
            read = getattr(tensor.grad_fn, "operation", None)
            if read is not None:
                read.uses += 1
        self.tape.add(operation)
        edit = self.run.edits.get(operation.index)
        if edit is not None and edit.inputs is not None:
            inputs = edit.inputs(*inputs)
        device = inputs[0].device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                output: Tensor = Recorded.apply(operation, *inputs)  # type: ignore[no-untyped-call]
        else:
            output = Recorded.apply(operation, *inputs)  # type: ignore[no-untyped-call]
        if operation.name == SOFTMAX:
            operation.where = self.where()
            self._softmaxes[operation] = output
        if self.run.forward_only:
            operation.release()
        else:
            self.tape.kept_bytes += output.nbytes
            if self.tape.kept_bytes > self._bound:
                raise TooLargeError
            self.steps.append(Step(operation, tuple(map(edge_of, inputs)), edge_of(output)))
        return output if edit is None or edit.output is None else _traced(edit.output(output))

    def apply_module(self, kind: str, module: nn.Module, path: str) -> Callable[..., Any]:
        """A forward that runs a module as one operation of the given kind."""
        forward, mixes = module.forward, spelling.mixed_by_module(module)

        def whole(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                function, inputs = Call("", forward, args, kwargs).as_function()
                if spelling.fits(kind, inputs):
                    at = {"name": type(module).__name__, "where": f"module '{path}'"}
                    return self.apply(Function(kind, function, mixes, **at), *inputs)
            return forward(*args, **kwargs)

        return whole

    def notice_attention(self, product: MatMul, a: Tensor, b: Tensor) -> None:
        """Note an attention site if a factor of the product a b came out of a softmax."""
        for factor in (a, b):
            softmax = softmax_behind(factor)
            if softmax is not None:
                self._softmaxes.pop(softmax, None)
                softmax.attends = product.attends = True
                product.a_is_map = getattr(a.grad_fn, "operation", None) is softmax
                site = AttentionSite(factor, product, self.where(), keys_first=factor is b)
                self.sites.append(site)
                return

    def notice_long_attention(self, attention: Attention, output: Tensor) -> None:
        """Note an attention site that has no maps."""
        shape = (*attention.queries.shape[:-1], attention.keys.shape[-2])
        weights = torch.empty(shape, device="meta")
        self.sites.append(AttentionSite(weights, attention, self.where(), output=output))

    def route(self, call: Call) -> Any:
        """Make a call whose ordinary backward routes relevance as it routes gradients."""
        before = [x.grad_fn for x in _flat(call.args, call.kwargs) if is_traced(x)]
        result = call.run()
        return self._routed(result if result is not None else call.args[0], before)

    def refuse(self, result: Any, name: str) -> Any:
        """Let gradients pass the outputs of an unknown call, but not relevance."""
        where = self.where()
        for output in _flat((result,), {}):
            if is_traced(output):
                self._routes.add(output.grad_fn)
                refuse_relevance(output.grad_fn, self.tape, name, where)
        return result

    def _routed(self, result: Any, before: Iterable[Any]) -> Any:
        """Know the nodes between a call's inputs and its outputs as routing."""
        known = {*before, None}
        waiting = [output.grad_fn for output in _flat((result,), {}) if is_traced(output)]
        while waiting:
            node = waiting.pop()
            if node not in known and node not in self._routes and not hasattr(node, "operation"):
                self._routes.add(node)
                waiting.extend(behind for behind, _ in node.next_functions)
        return result

    def finish(self, logits: Tensor) -> None:
        """See that nothing was missed between the first call and the logits.

        Autograd functions that the model brought along and calls that never came by, from
        TorchScript say, are kept from passing relevance in silence.

        Raises:
            WhenceError: An attention map was lost between its softmax and the values.
        """
        seen: set[Any] = {None}
        waiting: list[Any] = [logits.grad_fn]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            known = node in self._routes or hasattr(node, "operation") or not node.next_functions
            if not known:
                name = node.name().rstrip("0123456789").removesuffix("Backward")
                refuse_relevance(node, self.tape, name, "a part of the model that hides its calls")
            waiting.extend(behind for behind, _ in node.next_functions)
        for softmax, output in self._softmaxes.items():
            if output.grad_fn in seen and weighs_products(output.grad_fn):
                raise WhenceError(
                    f"The attention computed in {softmax.where} could not be followed to the "
                    f"values that it weighs, so the model cannot be explained by its attention."
                )

    def forget(self) -> None:
        """Let go of the graph."""
        self._softmaxes.clear()
        self._routes.clear()
        self.sites, self.inputs, self.steps, self.copies = [], [], [], set()

    def where(self, kind: str = "") -> str:
        """The module whose forward is running, for messages."""
        if kind in _COMMON:
            return ""
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in self._names:
                path, of = self._names[id(owner)], type(owner).__name__
                return f"module '{path}' ({of})" if path else f"{of}.forward"
            frame = frame.f_back  # type: ignore[assignment]
        return "the model's forward"


def is_lookup(name: str, args: Iterable[Any], result: Any, ids: Tensor | None) -> bool:
    """Whether a call looked up embeddings of these token ids."""
    if ids is None or name not in _LOOKUPS or not isinstance(result, Tensor):
        return False
    if not result.is_floating_point():
        return False
    for indices in args:
        if isinstance(indices, Tensor) and not indices.is_floating_point():
            same = indices.untyped_storage().data_ptr() == ids.untyped_storage().data_ptr()
            return same or (indices.shape == ids.shape and answer((indices == ids).all()))
    return False


def refuse_relevance(node: Any, tape: Tape, name: str, where: str) -> None:
    """Have an autograd node raise when relevance, and not a gradient, comes through it."""

    def refuse(_: Any) -> None:
        if tape.rules is not None:
            raise no_rule(tape.rules.name, name, where)

    node.metadata[REFUSED] = name, where
    node.register_prehook(refuse)  # for those who go backward with autograd's own engine


def _flat(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments, and what lists and tuples among them hold."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _constants(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_constant(value) for value in values)


def _constant(value: Any) -> Any:
    """Parameters without their gradients, also in lists and tuples; other values as they are."""
    kind = type(value)
    if kind is int or kind is float or value is None:
        return value
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad and value.is_leaf else value
    if kind is tuple:
        return _constants(value)
    return [_constant(v) for v in value] if kind is list else value
