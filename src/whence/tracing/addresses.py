"""Addresses of operations: where in a model each is computed, whatever the values are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn


class Address(NamedTuple):
    """Where in a model an operation is computed.

    Its number among all operations of a forward pass may change with the values: a model whose
    experts are computed one by one runs those that some token chose.

    Attributes:
        module: The path of the module whose forward computes it.
        number: Its number among the operations of that module.
    """

    module: str
    number: int


class AddressCounter:
    """Gives each operation of a forward pass its address, in the order of computation."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next_address(self, names: Mapping[int, str]) -> Address:
        """The address of the operation that is computed now."""
        found = find_running_module(names)
        path = "" if found is None else found[0]
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        return Address(path, number)


def find_running_module(names: Mapping[int, str]) -> tuple[str, str] | None:
    """The path and the class of the module whose forward is running, given paths by id."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_code.co_varnames[:1]:  # to list all variables of a frame takes long
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in names:
                return names[id(owner)], type(owner).__name__
        frame = frame.f_back  # type: ignore[assignment]
    return None
