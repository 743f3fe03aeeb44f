"""Make mutants of a Python file: copies of it with one small fault each.

Left out are what no test can see (docstrings, annotations, messages of errors) and copies that
compile to the same code as the file itself or as another copy.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_PAIRS = {"min": "max", "any": "all", "amin": "amax", "argmin": "argmax"}
_NAMES = _PAIRS | {second: first for first, second in _PAIRS.items()}
_NEVER_SWAPPED = ("isinstance", "issubclass", "hasattr", "getattr", "cast")
_DELETED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Delete, ast.Break, ast.Continue)


@dataclass(frozen=True)
class Mutant:
    """One fault in a file.

    Attributes:
        file: Path of the file, as it was given.
        first, last: Lines of the statement, without the statements inside it.
        kind: What was done, in words.
        before, after: The lines that differ.
        source: The whole file with the fault.
    """

    file: str
    first: int
    last: int
    kind: str
    before: str
    after: str
    source: str


def make_mutants(file: str, source: str) -> list[Mutant]:
    """Make all mutants of a file's source, in the order of its lines."""
    tree = ast.parse(source)
    plain = ast.unparse(tree)
    seen = {_compile(plain)}
    mutants = []
    for place in list(_walk(tree)):
        for kind, new in _mutate(place):
            place.put(new)
            text = ast.unparse(tree)
            place.put(place.node)
            code = _compile(text)
            if code is None or code in seen:
                continue
            seen.add(code)
            first, last = _find_lines(place.statement)
            before, after = _find_difference(plain, text)
            mutants.append(Mutant(file, first, last, kind, before, after, text + "\n"))
    return mutants


@dataclass(frozen=True)
class _Place:
    """Where a node stands: in a field of its parent, and in a statement."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    statement: ast.stmt
    in_function: bool

    def put(self, node: ast.AST) -> None:
        """Put a node there."""
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _walk(
    parent: ast.AST, statement: ast.stmt | None = None, in_function: bool = False
) -> Iterator[_Place]:
    """Walk through the nodes that may be changed."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        inside = in_function or (isinstance(parent, ast.FunctionDef) and field == "body")
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or _is_skipped(node):
                continue
            around = node if isinstance(node, ast.stmt) else statement
            if around is not None:
                at = index if isinstance(value, list) else None
                yield _Place(node, parent, field, at, around, inside)
            if not isinstance(node, ast.Raise):  # messages
                yield from _walk(node, around, inside)


def _is_skipped(node: ast.AST) -> bool:
    """Whether nothing of a node can change what tests see: docstrings, types, messages."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return True
    if isinstance(node, ast.FunctionDef):
        return any(ast.unparse(one).endswith("overload") for one in node.decorator_list)
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr)


def _mutate(place: _Place) -> list[tuple[str, ast.AST]]:
    """Make the changed forms of one node, each with a word on what was done."""
    node = place.node
    changes: list[tuple[str, ast.AST]] = []

    def add(kind: str, **fields: object) -> None:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        changes.append((kind, new))

    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in _COMPARISONS[type(op)]:
                    add("comparison", ops=[*ops[:i], other(), *ops[i + 1 :]])
        case ast.BoolOp(op=op):
            add("and/or", op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            add("arithmetic", op=_ARITHMETIC[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            changes.append(("sign" if isinstance(node.op, ast.USub) else "not", operand))
        case ast.Constant(value=bool(value)):
            add("True/False", value=not value)
        case ast.Constant(value=int(value)):
            add("constant", value=value + 1)
            if value:
                add("constant", value=value - 1)
        case ast.Return(value=ast.Constant(value=None | False)):
            pass  # a predicate that returns None is as good
        case ast.Return(value=value) if value is not None:
            add("return None", value=ast.Constant(None))
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                add("slice", lower=None)
            if upper is not None:
                add("slice", upper=None)
        case ast.Name(id=name) if name in _NAMES:
            add("min/max, any/all", id=_NAMES[name])
        case ast.Attribute(attr=name) if name in _NAMES:
            add("min/max, any/all", attr=_NAMES[name])
        case ast.Call(func=function, args=[first, second]):
            if ast.unparse(function) not in _NEVER_SWAPPED:
                add("swapped arguments", args=[second, first])
    if isinstance(node, ast.Break):
        changes.append(("break/continue", ast.copy_location(ast.Continue(), node)))
    elif isinstance(node, ast.Continue):
        changes.append(("break/continue", ast.copy_location(ast.Break(), node)))
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(
        node.test, ast.Compare | ast.UnaryOp
    ):
        add("condition", test=ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, _DELETED) and place.in_function:
        changes.append(("deleted", ast.copy_location(ast.Pass(), node)))
    return changes


def _compile(text: str) -> object:
    """Compile to something that is equal for equal code; None if it does not compile."""
    try:
        return _strip(compile(text, "", "exec"))
    except (SyntaxError, ValueError):
        return None


def _strip(code: CodeType) -> object:
    """Take what runs of some code, without names of files and numbers of lines."""
    constants = tuple(
        _strip(one) if isinstance(one, CodeType) else (type(one), repr(one))
        for one in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_name, code.co_code, code.co_flags, names, constants


def _find_difference(before: str, after: str) -> tuple[str, str]:
    """Find the lines that differ, which are those of one statement."""
    old, new = before.splitlines(), after.splitlines()
    start = end = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    removed, added = (lines[start : len(lines) - end] for lines in (old, new))
    return " ".join(map(str.strip, removed)), " ".join(map(str.strip, added))


def _find_lines(statement: ast.stmt) -> tuple[int, int]:
    """Find the lines of a statement, without the statements inside it."""
    last = statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    if body:
        last = max(statement.lineno, min(last, body[0].lineno - 1))
    return statement.lineno, last
