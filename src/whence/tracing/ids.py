"""Token ids on their way to the tables of embeddings: moved, masked, shifted or hashed.

A model may look up other ids than it was given: a decoder shifts them by one, a prefix comes
before them, several hashes of each one are looked up. Beside each tensor of whole numbers that
comes from the ids goes a shadow: for each entry, the number of the id it comes from. Calls that
move entries are made for the shadow as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.tracing import calls
from whence.tracing.calls import TorchCall
from whence.tracing.recording import LISTS, flatten_lists

# Calls by which embeddings are looked up, and the position and the name of the indices there.
_LOOKUPS = {"embedding": (0, "input"), "__getitem__": (1, ""), "index_select": (2, "index")}
# Calls that change each id by itself.
_CHANGING = frozenset(
    """
    add sub subtract rsub mul multiply div floor_divide remainder fmod neg abs clamp clamp_min
    clamp_max clip bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
    bitwise_right_shift
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __mod__ __rmod__ __floordiv__ __and__ __or__
    __xor__ __rshift__ __lshift__ __rfloordiv__
    """.split()
)
_MOVING = calls.ROUTING | frozenset("copy detach data fill long int scatter short".split())
_MOVING -= frozenset(
    """
    max amax min amin aminmax maximum minimum fmax fmin cummax cummin median nanmedian mode
    logsumexp logaddexp complex
    """.split()
)
_CASTS = frozenset("to type type_as long int short".split())
# Where such a call takes entries from beside its first argument. All else says where they go.
_SOURCES = {
    "masked_fill": (2,),
    "masked_scatter": (2,),
    "scatter": (3,),
    "index_copy": (3,),
    "pad": (3,),
    "copy": (1,),
    "fill": (1,),
    "__setitem__": (2,),
}
_KEYWORDS = frozenset("input tensors other value source src".split())


class Lookup(NamedTuple):
    """A call that looked embeddings up.

    Attributes:
        argument: The argument of the model that holds the token ids.
        rows: In the shape of the indices, the number of each id in the argument, counted over the
            whole batch; -1 where it comes from none.
    """

    argument: str | int
    rows: Tensor


class _Shadow(NamedTuple):
    """What goes beside a tensor: for each entry, 1 + the number of its id, or 0 if it has none."""

    tensor: Tensor  # kept, so that no other gets its id
    argument: str | int
    numbers: Tensor


class IdTracker:
    """Follows token ids through the calls of a forward pass.

    Args:
        ids: Token ids by the argument of the model that holds them.
    """

    def __init__(self, ids: Mapping[str | int, Tensor]) -> None:
        self._shadows: dict[int, _Shadow] = {}
        for argument, tensor in ids.items():
            numbers = torch.arange(1, tensor.numel() + 1, device=tensor.device)
            self._note(tensor, argument, numbers.reshape(tensor.shape))

    def observe(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> Lookup | None:
        """Follow one call; tell if it looked up embeddings of ids."""
        tracked = self._find_tracked((*args, *kwargs.values()))
        if not tracked:
            return None
        index = self._find_index(name, args, kwargs)
        if index is not None:
            return self._observe_lookup(index, result)
        in_place = name == "__setitem__" or (name[-1] == "_" and name[-2:] != "__")
        plain = name.removesuffix("_") if in_place and name != "__setitem__" else name
        if plain in _CHANGING and isinstance(result, Tensor) and _holds_ids(result):
            numbers = _combine([shadow.numbers for shadow in tracked]).expand(result.shape)
            self._note(result, tracked[0].argument, numbers)
        elif plain in _MOVING:
            if in_place and _holds_ids(args[0]) and id(args[0]) not in self._shadows:
                blank = torch.zeros(args[0].shape, dtype=torch.long, device=args[0].device)
                self._note(args[0], tracked[0].argument, blank)
            self._move(plain, TorchCall(name, function, args, dict(kwargs)), result)
        return None

    def _find_tracked(self, values: Iterable[Any]) -> list[_Shadow]:
        """The shadows of tensors among some values, and in what these hold."""
        shadows, found = self._shadows, list[_Shadow]()
        if not shadows:
            return found
        for value in values:
            if isinstance(value, Tensor):
                known = shadows.get(id(value))
                if known is not None:
                    found.append(known)
            elif isinstance(value, LISTS):
                found += self._find_tracked(value)
            elif isinstance(value, Mapping):
                found += self._find_tracked(value.values())
        return found

    def _find_index(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _Shadow | None:
        """The shadow of the indices of a look-up, if that is one of ids."""
        if name not in _LOOKUPS:
            return None
        position, keyword = _LOOKUPS[name]
        index = args[position] if position < len(args) else kwargs.get(keyword)
        if isinstance(index, tuple) and len(index) and isinstance(index[0], Tensor):
            index = index[0]
        return self._shadows.get(id(index))

    def _observe_lookup(self, index: _Shadow, result: Any) -> Lookup | None:
        numbers = index.numbers
        if not isinstance(result, Tensor) or result.shape[: numbers.dim()] != numbers.shape:
            return None
        if result.is_floating_point():
            return Lookup(index.argument, numbers - 1)
        if result.shape == numbers.shape:  # a table of other ids
            self._note(result, index.argument, numbers)
        return None

    def _move(self, plain: str, call: TorchCall, result: Any) -> None:
        """Move the entries of shadows as the call has moved those of the tensors."""
        argument: str | int | None = None

        def replace(value: Any) -> Any:
            nonlocal argument
            if isinstance(value, list | tuple):
                return type(value)(map(replace, value))
            if not isinstance(value, Tensor):
                return 0 if isinstance(value, int | float) else value
            known = self._shadows.get(id(value))
            if known is None:
                return torch.zeros_like(value, dtype=torch.long)
            argument = known.argument
            return known.numbers

        args, kwargs = list(call.args), dict(call.kwargs)
        if plain == "where":  # a mask comes first, or second
            args = [value if _is_mask(value) else replace(value) for value in args]
        else:
            for position in (0, *_SOURCES.get(plain, ())):
                if position < len(args):
                    args[position] = replace(args[position])
        for keyword in _KEYWORDS & kwargs.keys():
            kwargs[keyword] = replace(kwargs[keyword])
        if argument is None:
            return
        numbers = args[0] if plain in _CASTS else call.function(*args, **kwargs)
        pairs = zip(flatten_lists((result,)), flatten_lists((numbers,)), strict=False)
        for tensor, shadow in pairs:
            if (
                isinstance(tensor, Tensor)
                and _holds_ids(tensor)
                and id(tensor) not in self._shadows
            ):
                self._note(tensor, argument, shadow.to(tensor.device))

    def _note(self, tensor: Tensor, argument: str | int, numbers: Tensor) -> None:
        self._shadows[id(tensor)] = _Shadow(tensor, argument, numbers)


def _combine(shadows: list[Tensor]) -> Tensor:
    """One shadow of several; entries that come from two different ids come from none."""
    whole = shadows[0]
    for other in shadows[1:]:
        whole, other = torch.broadcast_tensors(whole, other)  # type: ignore[no-untyped-call]
        conflict = (whole > 0) & (other > 0) & (whole != other)
        whole = torch.maximum(whole, other).masked_fill(conflict, 0)
    return whole


def _holds_ids(value: object) -> bool:
    """Whether a value is a tensor of whole numbers."""
    return isinstance(value, Tensor) and not value.is_floating_point() and not _is_mask(value)


def _is_mask(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool
