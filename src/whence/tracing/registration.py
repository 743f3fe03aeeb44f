"""Registered operations: modules and functions that are taken as one operation each.

Users register their own. Activations such as NewGELUActivation or QuickGELU, and norms such as
LlamaRMSNorm or a hand-written LayerNorm, are known by the name of their class.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import get_overridable_functions

from whence._util.torch_internals import custom_operator_name
from whence.errors import WhenceError
from whence.tracing.calls import name_of

_NORM_SUFFIXES = ("rmsnorm", "layernorm")
_ACTIVATION_SUFFIXES = ("gelu", "geluactivation", "mish", "swish", "silu")
_PASSING_PACKAGES = ("transformers.activations", "timm.layers.activations")

# Kinds of operations that whence knows more of than what they compute: weights, factors.
_RESERVED = frozenset(("linear", "matmul", "add", "shift", "attention", "shared"))
_KINDS = (
    'Pass "pass" if relevance passes it unchanged (activations, norms), "sum" if it adds or '
    'averages its input, "product" if it multiplies its inputs, "softmax" if it is one over the '
    "last dimension (that of an attention, say), or a name of your own for which "
    "whence.rules.get('stable').extend('mine', your_kind=your_rule) gives a rule."
)

# What users registered: module classes and names of torch functions, with their kinds.
registered_kinds: dict[type[nn.Module] | str, str] = {}


def register_operation(operation: type[nn.Module] | Callable[..., Any] | str, kind: str) -> None:
    """Treat a module class, a torch function or a function's name as one operation.

    It may return one tensor, or several in a tuple, list, dict or output class. Each of them that
    depends on the input is then an operation of this kind by itself, and relevance of all of them
    is added up at the input. Whatever else it returns is handed on as it is.

    Args:
        operation: A subclass of ``torch.nn.Module`` whose whole ``forward`` is the operation, or a
            function that torch dispatches (a custom operator, say), or such a function's name.
        kind: ``"pass"`` if relevance passes it unchanged (activations, norms), ``"sum"`` if it adds
            or averages its input, ``"product"`` if it multiplies its inputs, ``"softmax"`` if it is
            one over the last dimension, so that its product with values is attention, or a kind of
            your own for which a rule set has a rule.

    Raises:
        WhenceError: Calls of it cannot be seen, or the kind is not one for it. The message says
            what to pass.
    """
    if not isinstance(kind, str) or not kind.isidentifier():
        raise WhenceError(f"A kind of operation is a name, not {kind!r}. {_KINDS}")
    if kind in _RESERVED:
        raise WhenceError(
            f"Operations of the kind '{kind}' are found by whence itself: their rules need more "
            f"than a function, such as weights. {_KINDS}"
        )
    registered_kinds[_find_key(operation)] = kind


def _find_key(operation: type[nn.Module] | Callable[..., Any] | str) -> type[nn.Module] | str:
    """The module class, or the name by which calls of a function are seen."""
    if isinstance(operation, nn.Module):
        name = type(operation).__name__
        raise WhenceError(
            f"register_operation takes the class of a module and not a module: pass {name}. All "
            f"modules of the class are then one operation each."
        )
    if isinstance(operation, type):
        if issubclass(operation, nn.Module):
            return operation
        wrapped = " Call its apply in the forward of a module, and register the module's class."
        advice = wrapped if issubclass(operation, torch.autograd.Function) else ""
        raise WhenceError(
            f"{operation.__name__} is neither a module class nor a function: whence cannot see its "
            f"calls. Register a subclass of torch.nn.Module or a function that torch dispatches."
            f"{advice}"
        )
    if isinstance(operation, str):
        return _check_name(operation)
    name = custom_operator_name(operation)
    if name:
        return name
    if not callable(operation):
        raise WhenceError(
            f"register_operation takes a module class, a torch function or the name of one, not "
            f"{type(operation).__name__}."
        )
    name = name_of(operation)
    if name not in _overridable_names():
        raise WhenceError(
            f"Calls of {name} cannot be seen, as torch does not dispatch them; only those of torch "
            f"functions inside of it are. Put its body into the forward of a torch.nn.Module and "
            f"register the module's class, or make it a torch.library.custom_op and register that."
        )
    return name


def _check_name(name: str) -> str:
    """The name by which calls of a function are seen, given the name that the user knows."""
    short = name.rpartition("::")[2].removeprefix("torch.").replace("linalg.", "linalg_")
    known = _overridable_names()
    if "::" in name or short in known:
        return short
    near = difflib.get_close_matches(short, known, 3)
    hint = f" Near: {', '.join(near)}." if near else ""
    raise WhenceError(
        f"There is no torch function '{name}'.{hint} For a custom operator pass the operator "
        f"itself or its name with its namespace ('mylib::scan'), for a module its class."
    )


@functools.cache
def _overridable_names() -> frozenset[str]:
    """The names of torch functions whose calls are seen."""
    functions = get_overridable_functions().values()
    return frozenset(getattr(one, "__name__", "") for some in functions for one in some)


# Modules -----------------------------------------------------------------------------------------


def find_module_kind(module: nn.Module) -> str | None:
    """The kind of operation that a module is as a whole, or None if its calls are recorded."""
    registered = find_registered_kind(type(module))
    if registered is not None:
        return registered
    of = type(module)
    if not _may_be_one_operation(of.__module__, of.__name__.lower()):
        return None
    # Subclasses of torch's own norms and activations call one torch function, seen as such; and
    # what has weight matrices or modules of its own does more than its name says.
    matrices = any(parameter.dim() > 1 for parameter in module.parameters())
    known = isinstance(module, nn.LayerNorm | nn.GELU | nn.SiLU)
    return None if known or matrices or any(module.children()) else "pass"


def find_registered_kind(of: type[nn.Module]) -> str | None:
    """The kind under which a class of modules, or a class that it derives from, is registered."""
    if not registered_kinds:
        return None
    return next((registered_kinds[base] for base in of.__mro__ if base in registered_kinds), None)


@functools.lru_cache(1024)
def _may_be_one_operation(package: str, name: str) -> bool:
    """Whether a class that is none of torch's is named as norms or activations are."""
    is_norm = name.endswith(_NORM_SUFFIXES)
    return not package.startswith("torch.") and (is_norm or _is_named_activation(package, name))


def _is_named_activation(package: str, name: str) -> bool:
    return name.endswith(_ACTIVATION_SUFFIXES) or package.startswith(_PASSING_PACKAGES)


def is_known_activation(module: nn.Module) -> bool:
    """Whether a module is an activation of a library, whose attributes nobody changes."""
    of = type(module)
    return "forward" not in vars(module) and of.__module__.startswith(
        ("torch.", *_PASSING_PACKAGES)
    )


def find_mixed_dims(module: nn.Module) -> int | None:
    """How many of the last dimensions a module mixes, if that is known."""
    has_parameters = any(True for _ in module.parameters())
    of = type(module)
    is_activation = _is_named_activation(of.__module__, of.__name__.lower())
    return 0 if is_activation and not has_parameters else None
