"""Calls of blocks that can be made again: a module of a list, and the arguments that it was given.

The blocks of a Transformer are modules of one class in a list. What enters them is all that has to
be kept of a forward pass: what their operations keep is computed again by calling them once more.
"""

from __future__ import annotations

import enum
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from whence._util.torch_internals import flatten_tree
from whence.tracing.ops.base import is_traced, shares_memory

_LISTS = (nn.ModuleList, nn.ModuleDict)
_CONTAINERS = (*_LISTS, nn.Sequential)
# What a call cannot change, or is not expected to.
_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), slice, range, enum.Enum),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(type, types.FunctionType, types.BuiltinFunctionType, nn.Module),
)
_MAX_TYPES = 4096
# How far, relative to its norm, a row of the output may be from what it was: by what is rounded.
_ROUNDED_ROWS = 4
_LEAST_DIFFERENCE = 1e-4


class CannotKeepError(Exception):
    """An argument of a call cannot be kept for another call."""


class BlockDiffersError(Exception):
    """A block computed something else when it was called again."""


def find_repeated_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that share their class with another of the same list, and consist of others.

    A module that is in the list twice is called twice.
    """
    found: dict[nn.Module, None] = {}
    for container in modules:
        if isinstance(container, _CONTAINERS):
            children = [child for child in container.children() if not isinstance(child, _LISTS)]
            kinds = [type(child) for child in children]
            for child in children:
                if kinds.count(type(child)) > 1 and any(True for _ in child.children()):
                    found[child] = None
    return list(found)


class BlockCall:
    """A call of a module, with its arguments as they were.

    Args:
        module: The module.
        forward: What computes its output.
        args: The arguments of the call.
        kwargs: The same, by keywords.

    Attributes:
        module: The module.
        inputs: Where in the graph arguments are that depend on the model's input, with their
            values.

    Raises:
        CannotKeepError: The call may change an argument that cannot be copied.
    """

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.module = module
        self._forward = forward
        self._tensors: dict[int, _KeptTensor] = {}
        keeper = _Copier(self._keep)
        self._arguments = keeper.copy((args, kwargs))
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                self._tensors[id(value)].is_argument = True
        self._random_state = _read_random_state()
        self._output: Tensor | None = None
        self._is_random = False

    def _keep(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._tensors:
            self._tensors[id(value)] = _KeptTensor(value)
        return self._tensors[id(value)]

    @property
    def inputs(self) -> Iterator[tuple[GradientEdge, Tensor]]:
        """Arguments that depend on the model's input: where in the graph they are, and values."""
        kept = self._tensors.values()
        return ((one.edge, one.value) for one in kept if one.edge is not None)

    def finish(self, returned: Any) -> Tensor | None:
        """Note what the call returned; the first tensor of it that depends on the model's input."""
        self._is_random = not torch.equal(self._random_state, _read_random_state())
        self._output = next((x.detach() for x in _list_tensors(returned) if is_traced(x)), None)
        return self._output

    @property
    def can_repeat(self) -> bool:
        """Whether another call can be expected to compute the same."""
        return not self._is_random and self._output is not None

    def repeat(self, recorder: Any) -> Tensor:
        """Make the call again, while a mode watches; return true where its output differs.

        Raises:
            BlockDiffersError: It returns something else.
        """
        restore = _Copier(lambda value: value.restore() if type(value) is _KeptTensor else value)
        args, kwargs = restore.copy(self._arguments)
        with recorder:
            returned = self._forward(*args, **kwargs)
        found = next((x.detach() for x in _list_tensors(returned) if is_traced(x)), None)
        expected = self._output
        if found is None or expected is None or found.shape != expected.shape:
            raise BlockDiffersError
        far, sizes = measure_rows(found - expected), measure_rows(expected)
        return differ(far, sizes, expected.dtype)

    def preserve(self, overwritten: Tensor) -> None:
        """Copy what is kept of a tensor's memory before the model overwrites it."""
        for kept in self._tensors.values():
            if shares_memory(kept.value, overwritten):
                kept.value = kept.value.clone()
        if self._output is not None and shares_memory(self._output, overwritten):
            self._output = self._output.clone()


def differ(far: Tensor, sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether rows of some type differ by more than rounding, which may not be the same twice.

    Args:
        far: How far rows are from what they should be.
        sizes: The sizes of these.
        dtype: Their type.
    """
    tolerance = max(_ROUNDED_ROWS * torch.finfo(dtype).eps, _LEAST_DIFFERENCE)
    near: Tensor = (far <= sizes * tolerance).all()
    return ~near  # which is also so where there are NaNs


def measure_rows(values: Tensor) -> Tensor:
    """The size of each row."""
    rows = values.reshape(values.shape or (1,))
    wide = torch.promote_types(values.dtype, torch.float32)
    sizes: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=wide)
    return sizes


def _list_tensors(returned: Any) -> Iterable[Tensor]:
    return (leaf for leaf in flatten_tree(returned)[0] if isinstance(leaf, Tensor))


def _read_random_state() -> Tensor:
    """The states of torch's generators of random numbers."""
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


class _KeptTensor:
    """The values of a tensor, and whether it depends on the model's input.

    Attributes:
        value: The values, outside of the graph.
        edge: Where it is in the graph; None for a constant.
        is_argument: Whether it is an argument itself, to which a model may write, and no part of
            one, such as the keys and values of a cache, of which there are many.
    """

    is_argument = False

    def __init__(self, tensor: Tensor) -> None:
        self.value = tensor.detach()
        self.edge: GradientEdge | None = None
        if is_traced(tensor) and tensor.grad_fn is not None:
            self.edge = GradientEdge(tensor.grad_fn, tensor.output_nr)

    def restore(self) -> Tensor:
        """A tensor like the one that was kept."""
        if self.edge is None:
            return self.value
        leaf = self.value.detach().requires_grad_()
        return leaf.clone() if self.is_argument else leaf.view_as(leaf)


class _Copier:
    """Copies containers and plain objects, such as caches of keys and values; each once.

    Args:
        copy_leaf: Copies what they hold: tensors and constants.
    """

    def __init__(self, copy_leaf: Callable[[Any], Any]) -> None:
        self._copy_leaf = copy_leaf
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        """A copy with the same structure.

        Raises:
            CannotKeepError: An object cannot be copied.
        """
        kind = type(value)
        if kind in _ATOMS:
            return value
        how = _ways_to_copy.get(kind) or _find_way_to_copy(kind)
        if how == "leaf":
            return self._copy_leaf(value)
        known = self._copies.get(id(value))
        if known is not None:
            return known
        if how == "kept":
            copied: Any = self._copy_leaf(value)
        elif how == "items":
            copied = kind([self.copy(one) for one in value])
        elif how == "mapping":
            copied = kind([(key, self.copy(one)) for key, one in value.items()])
        elif how == "fields":
            copied = kind(*map(self.copy, value))
        else:
            copied = self._copies[id(value)] = object.__new__(kind)
            held = copied.__dict__
            for name, one in value.__dict__.items():
                held[name] = one if type(one) in _ATOMS else self.copy(one)
        self._copies[id(value)] = copied
        return copied


# Types that are met most often, of values that nobody can change.
_ATOMS = frozenset((bool, int, float, str, type(None)))
# How values of a type are copied: found once, since a cache holds many objects of few types.
_ways_to_copy: dict[type, str] = {}


def _find_way_to_copy(kind: type) -> str:
    """How values of a type are copied.

    Raises:
        CannotKeepError: They cannot be.
    """
    if kind is _KeptTensor:
        how = "kept"  # one tensor stays one
    elif issubclass(kind, (Tensor, *_CONSTANTS)):
        how = "leaf"
    elif kind in (list, tuple, set):
        how = "items"
    elif kind in (dict, OrderedDict):
        how = "mapping"
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        how = "fields"
    else:
        special = any(vars(base).get("__slots__") for base in kind.__mro__)
        special |= any("__new__" in vars(base) for base in kind.__mro__[:-1])
        if special or not kind.__dictoffset__:
            raise CannotKeepError
        how = "attributes"
    if len(_ways_to_copy) < _MAX_TYPES:
        _ways_to_copy[kind] = how
    return how
