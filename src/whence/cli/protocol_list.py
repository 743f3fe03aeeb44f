"""List the benchmark protocols for --help, from their docstrings and without importing them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parents[1] / "benchmark" / "protocols"
_WORDS = {"image": "photos", "text": "texts"}


class ListedProtocol(NamedTuple):
    """The name of a protocol, what it takes, and the first line of its docstring."""

    name: str
    takes: str
    line: str


@cache
def list_protocols() -> dict[str, ListedProtocol]:
    """List the protocols by name. Their modules import torch, which takes seconds."""
    classes: dict[str, ast.ClassDef] = {}
    for file in _FOLDER.glob("*.py"):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        classes |= {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    found = []
    for node in classes.values():
        name = _read_class_variables(node).get("name")
        if isinstance(name, str):
            kinds = _find_kinds(node, classes)
            takes = " and ".join(_WORDS[kind] for kind in kinds)
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            found.append(ListedProtocol(name, takes, line))
    return {one.name: one for one in sorted(found)}


def _find_kinds(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Sequence[str]:
    """Find the kinds of samples of a class, or of the class that it extends."""
    kinds = _read_class_variables(node).get("kinds")
    if isinstance(kinds, tuple):
        return kinds
    names = [
        part.id for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Name)
    ]
    return next((_find_kinds(classes[name], classes) for name in names if name in classes), ())


def format_protocols() -> str:
    """Format the list for --help."""
    listed = list_protocols().values()
    width = max(len(one.name) for one in listed)
    return "\n".join(f"    {one.name.ljust(width)}  {one.takes}: {one.line}" for one in listed)


def _read_class_variables(node: ast.ClassDef) -> dict[str, object]:
    """Read the class variables of a class that are written as plain values."""
    found: dict[str, object] = {}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value:
            try:
                found[one.target.id] = ast.literal_eval(one.value)
            except ValueError:
                continue
    return found
