"""Modules that are recorded as one operation.

These are activations and norms that a model computes in many calls, and linear maps that hide their
calls: quantized ones, and those inside of an autograd function. A module with ``in_features`` and
``out_features`` whose calls cannot be seen is run once more on unit vectors, which gives its
weight. It is recorded as a linear map if its values prove it to be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence._util.torch_internals import is_dynamic_quantized_linear, without_torch_function
from whence.errors import LostGradientError
from whence.tracing.block_calls import BlockCall, CannotKeepError
from whence.tracing.calls import TorchCall
from whence.tracing.ops.base import Operation, is_traced
from whence.tracing.ops.function import Function
from whence.tracing.ops.products import Linear
from whence.tracing.recorders.functions import fits_kind
from whence.tracing.recorders.whole import check_registered, record_whole
from whence.tracing.recording import Recording
from whence.tracing.registration import (
    find_mixed_dims,
    find_module_kind,
    find_registered_kind,
    is_known_activation,
    registered_kinds,
)
from whence.tracing.stand_in import name_modules

# How far, relative to its norm, the output of a linear map may be from what its weight gives:
# quantized ones round their inputs.
_TOLERANCE = 0.02


class RecordedModules(NamedTuple):
    """Modules that are recorded in a way of their own.

    Attributes:
        paths: The paths of all modules.
        whole: Those that are one operation as a whole, with its kind.
        linear: Those that say they are linear maps, and may hide their calls.
        quick: Frequent modules of torch, whose one call is recorded without a mode seeing it.
    """

    paths: Mapping[nn.Module, str]
    whole: list[tuple[nn.Module, str]]
    linear: list[nn.Module]
    quick: list[nn.Module]

    @classmethod
    def find(cls, model: nn.Module) -> RecordedModules:
        """Find them in a model."""
        paths = name_modules(model)
        whole = [(one, kind) for one in paths if (kind := find_module_kind(one)) is not None]
        linear = [one for one in paths if is_linear_like(one)]
        return cls(paths, whole, linear, [one for one in paths if _is_quick(one)])

    def select(self, block: nn.Module) -> RecordedModules:
        """Those of one module of the model."""
        own = set(block.modules())
        whole = [(one, kind) for one, kind in self.whole if one in own]
        linear, quick = ([one for one in some if one in own] for some in (self.linear, self.quick))
        return self._replace(whole=whole, linear=linear, quick=quick)

    @contextmanager
    def record(self, recording: Recording, blocks: Iterable[nn.Module] = ()) -> Iterator[None]:
        """While entered, they are recorded.

        Args:
            recording: Where operations are recorded.
            blocks: Modules whose operations are freed together, and computed again.
        """
        whole = (module for module, _ in self.whole)
        changed = dict.fromkeys((*whole, *self.linear, *self.quick, *blocks))
        before = {module: module.__dict__.get("forward") for module in changed}
        for module, kind in self.whole:
            path = self.paths[module]
            module.__dict__["forward"] = record_module(recording, kind, module, path)
        for module in self.linear:
            path = self.paths[module]
            module.__dict__["forward"] = record_linear_module(recording, module, path)
        for module in self.quick:
            module.__dict__["forward"] = record_quickly(recording, module)
        for module in blocks:
            module.__dict__["forward"] = record_block(recording, module)
        try:
            yield
        finally:
            for module, forward in before.items():
                module.__dict__["forward"] = forward
                if forward is None:
                    del module.__dict__["forward"]


def record_block(recording: Recording, module: nn.Module) -> Callable[..., Any]:
    """A forward that keeps the arguments of a module, so that it can be called again."""
    forward, segments = module.forward, recording.segments

    def record_forward(*args: Any, **kwargs: Any) -> Any:
        if segments.in_block or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if not segments.may_free_blocks:
            before = recording.kept_bytes
            returned = forward(*args, **kwargs)
            segments.note_block(recording.kept_bytes - before)
            return returned
        try:
            with without_torch_function():
                call = BlockCall(module, forward, args, kwargs)
        except CannotKeepError:
            return forward(*args, **kwargs)
        followed = len(recording.inputs)
        with segments.record_block(call) as finish:
            returned = forward(*args, **kwargs)
            with without_torch_function():
                finish(returned if len(recording.inputs) == followed else None)
        return returned

    return record_forward


def record_module(
    recording: Recording, kind: str, module: nn.Module, path: str
) -> Callable[..., Any]:
    """A forward that runs a module as one operation of the given kind."""
    forward, mixed_dims = module.forward, find_mixed_dims(module)
    stateless = is_known_activation(module)
    registered = find_registered_kind(type(module)) is not None
    name, where = type(module).__name__, f"module '{path}'"

    def record_forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with without_torch_function():
            function, inputs = TorchCall("", forward, args, kwargs).as_function()
            if registered and inputs:
                check_registered(name, kind, inputs)
            if fits_kind(kind, inputs):
                said = mixed_dims, name, where, registered, stateless
                return record_whole(recording, kind, function, inputs, *said)
        return forward(*args, **kwargs)

    return record_forward


def _is_quick(module: nn.Module) -> bool:
    """Whether a module is a frequent one of torch, and nobody has said more of it."""
    of = type(module).forward
    unchanged = not registered_kinds and "forward" not in vars(module)
    return unchanged and (of in _QUICK or (of is nn.Dropout.forward and not module.training))


def record_quickly(recording: Recording, module: nn.Module) -> Callable[[Tensor], Tensor]:
    """A forward of a frequent module of torch that records its one call by itself.

    It records what the call would be recorded as.
    """
    of, forward = type(module).forward, module.forward
    if of is nn.Dropout.forward:
        return _pass_unchanged
    make_operation = _QUICK[of]

    def record_forward(input: Tensor) -> Tensor:  # noqa: A002  as torch names it
        with without_torch_function():
            if torch.is_grad_enabled() and is_traced(input):
                operation = make_operation(module)
                if operation is not None:
                    return recording.apply(operation, input)
        result: Tensor = forward(input)
        return result

    return record_forward


def _pass_unchanged(input: Tensor) -> Tensor:  # noqa: A002  as torch names it
    return input


def _make_linear(module: nn.Linear) -> Operation | None:
    weight, bias = module.weight, module.bias
    if is_traced(weight) or is_traced(bias):
        return None
    return Linear(weight.detach(), None if bias is None else bias.detach())


def _make_layer_norm(module: nn.LayerNorm) -> Operation | None:
    shape, eps = module.normalized_shape, module.eps
    weight: Tensor | None = module.weight  # None in a norm without
    bias: Tensor | None = module.bias
    if is_traced(weight) or is_traced(bias):
        return None
    weight = None if weight is None else weight.detach()
    bias = None if bias is None else bias.detach()

    def normalize(x: Tensor) -> Tensor:
        return torch.layer_norm(x, shape, weight, bias, eps)

    return Function("pass", normalize, len(shape), name="layer_norm")


def _make_silu(module: nn.SiLU) -> Operation | None:
    return None if module.inplace else Function("pass", nn.functional.silu, 0, name="silu")


def _make_gelu(module: nn.GELU) -> Operation | None:
    approximate = module.approximate

    def activate(x: Tensor) -> Tensor:
        return nn.functional.gelu(x, approximate=approximate)

    return Function("pass", activate, 0, name="gelu")


_QUICK: dict[Callable[..., Any], Callable[[Any], Operation | None]] = {
    nn.Linear.forward: _make_linear,
    nn.LayerNorm.forward: _make_layer_norm,
    nn.SiLU.forward: _make_silu,
    nn.GELU.forward: _make_gelu,
}


class HiddenLinear(Linear):
    """A linear map that a module computes in a way of its own.

    Its output in the forward pass is the module's; rules see that of weight and bias, which can
    differ by what the module rounds.
    """

    def __init__(
        self, run: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor, name: str, where: str
    ) -> None:
        super().__init__(weight, bias, name, where)
        self._run = run

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        super().forward(*inputs)
        return self._run(inputs[0].detach())


def is_linear_like(module: nn.Module) -> bool:
    """Whether a module says it is a linear map, but does not run torch's own ``nn.Linear``."""
    if type(module).forward is nn.Linear.forward and "forward" not in vars(module):
        return False
    if not ("in_features" in vars(module) or hasattr(type(module), "in_features")):
        return False
    sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return all(isinstance(size, int) for size in sizes)


def record_linear_module(recording: Recording, module: nn.Module, path: str) -> Callable[..., Any]:
    """A forward that records a module as a linear map if it is one and hides its calls."""
    forward = module.forward

    def run(x: Tensor) -> Tensor:
        with torch.no_grad(), without_torch_function():
            result: Tensor = forward(x)
            return result

    def record_forward(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        if not (torch.is_grad_enabled() and is_traced(x)):
            return forward(*args, **kwargs)
        result = refusal = None
        try:
            result = forward(x)
            if not isinstance(result, Tensor) or _has_seen(recording, result, x):
                return result
        except LostGradientError as error:
            refusal = error
        with without_torch_function():
            found = _find_weight(recording, module, run, x.detach())
            if found is not None:
                name, where = type(module).__name__, f"module '{path}'"
                return recording.apply(HiddenLinear(run, *found, name, where), x)
        if refusal is not None:
            raise refusal
        return result

    return record_forward


def _has_seen(recording: Recording, output: Tensor, x: Tensor) -> bool:
    """Whether all calls that made an output of x were seen."""
    waiting, seen = [output.grad_fn], {x.grad_fn}
    while waiting:
        node = waiting.pop()
        if node is None or not (node in seen or recording.passes_relevance(node)):
            return False
        if node not in seen and not hasattr(node, "operation"):
            seen.add(node)
            waiting.extend(upstream for upstream, _ in node.next_functions if upstream is not None)
    return True


def _find_weight(
    recording: Recording, module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of a linear map, or None if it is not proven to be one."""
    if not x.is_floating_point():
        return None
    bias = run(x.new_zeros(1, x.shape[-1]))[0]
    units = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    weight = (run(units) - bias).mT
    if is_dynamic_quantized_linear(module):
        return weight, bias
    for point in (x, x * -2):
        output, expected = run(point), nn.functional.linear(point, weight, bias)
        if output.shape != expected.shape or output.dtype != expected.dtype:
            return None
        close = (output - expected).norm() <= _TOLERANCE * (expected - bias).norm()
        if not recording.guard.look_at(close):
            return None
    return weight, bias
