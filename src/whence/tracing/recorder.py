"""The function mode that watches one forward pass and puts its operations on the tape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import MethodWrapperType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.errors import WhenceError
from whence.tracing import spelling
from whence.tracing.attention import SOFTMAX, AttentionSite, softmax_behind
from whence.tracing.operations import Function, Operation, Recorded, Tape
from whence.tracing.rules import no_rule
from whence.tracing.spelling import Call, is_traced

# Kinds that every rule set has: no need to note where they were called.
_COMMON = frozenset(("linear", "matmul", "add", "sum", "pass"))


class Recorder(TorchFunctionMode):
    """Sees every torch call of a forward pass and records those that depend on the input.

    Attributes:
        tape: What the recorded operations share.
        sites: The attention maps found, nearest the input first.
        grids: Spatial sizes of convolution outputs: one of them is the grid of patches.
        inputs: The leaves where the dependence on the input begins: pixels or embeddings.
    """

    def __init__(self, tape: Tape, names: Mapping[int, str]) -> None:
        super().__init__()
        self.tape = tape
        self.sites: list[AttentionSite] = []
        self.grids: list[tuple[int, ...]] = []
        self.inputs: list[Tensor] = []
        self._names = names
        self._ids: Tensor | None = None
        self._softmaxes: dict[Function, Tensor] = {}

    def begin(self, main: Tensor) -> Tensor:
        """Start following a model's input; token ids are followed from their embeddings on."""
        self.tape.batch = main.shape[0]
        if not main.is_floating_point():
            self._ids = main
            return main
        return self._followed(main)

    def _followed(self, value: Tensor) -> Tensor:
        leaf = value.detach().requires_grad_()
        self.inputs.append(leaf)
        # Not the leaf itself, which may not be written to in place.
        return leaf.view_as(leaf)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Handle one call; while this runs, the mode is off."""
        kwargs = kwargs or {}
        if not any(map(is_traced, _flat(args, kwargs))):
            with torch.no_grad():
                result = func(*args, **kwargs)
            if self._ids is not None and spelling.name_of(func) == "embedding":
                return self._embedded(result, args[0] if args else kwargs["input"])
            return result
        name = spelling.name_of(func)
        if isinstance(func, MethodWrapperType) and name not in spelling.ROUTING:
            return func(*args, **kwargs)  # an attribute, such as shape
        args, kwargs = _constant(args), {k: _constant(v) for k, v in kwargs.items()}
        if name.endswith("_") and not name.endswith("__"):
            return self._in_place(Call(name[:-1], func, args, kwargs))
        if kwargs.get("inplace"):
            kwargs["inplace"] = False
            return self._overwrite(args[0], spelling.spell(self, Call(name, func, args, kwargs)))
        if name == "__setitem__":
            self.tape.preserve(args[0])
        return spelling.spell(self, Call(name, func, args, kwargs))

    def _embedded(self, result: Tensor, indices: Tensor) -> Tensor:
        ids = self._ids
        assert ids is not None
        same = indices.untyped_storage().data_ptr() == ids.untyped_storage().data_ptr()
        copied = indices.shape == ids.shape and torch.equal(indices, ids)
        return self._followed(result) if same or copied else result

    def _in_place(self, call: Call) -> Any:
        if call.name in spelling.ROUTING or not hasattr(Tensor, call.name):
            self.tape.preserve(call.args[0])
            if call.name in spelling.ROUTING or f"{call.name}_" in spelling.ROUTING:
                return call.run()
            return self.refuse(call.run(), call.name)
        call.function = getattr(Tensor, call.name)
        return self._overwrite(call.args[0], spelling.spell(self, call))

    def _overwrite(self, tensor: Tensor, value: Tensor) -> Tensor:
        if value is tensor:
            return tensor
        self.tape.preserve(tensor)
        return tensor.copy_(value)

    def apply(self, operation: Operation, *inputs: Tensor) -> Tensor:
        """Perform an operation and record it."""
        self.tape.add(operation)
        output: Tensor = Recorded.apply(operation, *inputs)  # type: ignore[no-untyped-call]
        if isinstance(operation, Function) and operation.name == SOFTMAX:
            self._softmaxes[operation] = output
        return output

    def apply_module(self, kind: str, module: nn.Module, path: str) -> Callable[..., Any]:
        """A forward that runs a module as one operation of the given kind."""
        forward = module.forward

        def whole(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                call = Call(type(module).__name__, forward, args, kwargs)
                function, inputs = call.as_function()
                if spelling.fits(kind, inputs):
                    at = {"name": call.name, "where": f"module '{path}'"}
                    return self.apply(Function(kind, _one_tensor(function, path), **at), *inputs)
            return forward(*args, **kwargs)

        return whole

    def notice_attention(self, *factors: Tensor) -> None:
        """Note an attention site if one factor of a matrix product came out of a softmax."""
        for factor in factors:
            softmax = softmax_behind(factor)
            if softmax is not None and softmax in self._softmaxes:
                self.sites.append(AttentionSite(self._softmaxes.pop(softmax), self.where()))
                return

    def refuse(self, result: Any, name: str) -> Any:
        """Let gradients pass the outputs of an unknown call, but not relevance."""
        where = self.where()
        for output in _flat((result,), {}):
            if is_traced(output):
                assert output.grad_fn is not None
                refuse_relevance(output.grad_fn, self.tape, name, where)
        return result

    def where(self, kind: str = "") -> str:
        """The module whose forward is running, for messages."""
        if kind in _COMMON:
            return ""
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in self._names:
                path = self._names[id(owner)]
                return (
                    f"module '{path}' ({type(owner).__name__})" if path else "the model's forward"
                )
            frame = frame.f_back  # type: ignore[assignment]
        return "the model's forward"


def refuse_relevance(node: Any, tape: Tape, name: str, where: str) -> None:
    """Have an autograd node raise when relevance, and not a gradient, comes through it."""

    def refuse(_: Any) -> None:
        if tape.rules is not None:
            raise no_rule(tape.rules.name, name, where)

    node.register_prehook(refuse)


def _one_tensor(function: Callable[..., Any], path: str) -> Callable[..., Tensor]:
    def checked(*inputs: Tensor) -> Tensor:
        output = function(*inputs)
        if not isinstance(output, Tensor):
            raise WhenceError(
                f"Module '{path}' is registered as one operation but returns "
                f"{type(output).__name__}; only modules that return one tensor can be."
            )
        return output

    return checked


def _flat(args: Any, kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments, and what lists and tuples among them hold."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _constant(value: Any) -> Any:
    """Parameters without their gradients, also in lists and tuples; other values as they are."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad and value.is_leaf else value
    if type(value) in (list, tuple):
        return type(value)(_constant(v) for v in value)
    return value
