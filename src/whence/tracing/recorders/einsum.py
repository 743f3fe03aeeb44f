"""Einsum and its relatives, as reshapes and matrix products of two factors each."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.tracing.calls import TorchCall
from whence.tracing.recording import Recording

_LETTERS = string.ascii_letters


def record_einsum(recording: Recording, call: TorchCall) -> Any:
    """Record an einsum: of several operands, the first two are multiplied, and so on."""
    equation, operands = _read_arguments(call.args)
    with recording.active():
        return run_einsum(equation, operands)


def record_tensordot(recording: Recording, call: TorchCall) -> Any:
    """Record products over several dimensions of each factor."""
    a, b = call.argument(0, "a"), call.argument(1, "b")
    dims = call.argument(2, "dims", 2)
    if isinstance(dims, int):
        dims = (range(a.dim() - dims, a.dim()), range(dims))
    left, right = ([int(d) for d in one] for one in dims)
    ia, ib = list(_LETTERS[: a.dim()]), list(_LETTERS[a.dim() : a.dim() + b.dim()])
    for i, j in zip(left, right, strict=True):
        ib[j] = ia[i]
    inner = {ia[i] for i in left}
    result = "".join(i for i in (*ia, *ib) if i not in inner)
    with recording.active():
        return run_einsum(f"{''.join(ia)},{''.join(ib)}->{result}", [a, b])


_PRODUCTS = {
    "outer": "i,j->ij",
    "ger": "i,j->ij",
    "dot": "i,i->",
    "vdot": "i,i->",
    "mv": "ij,j->i",
    "inner": "",
}


def record_vector_product(recording: Recording, call: TorchCall) -> Any:
    """Record a product of vectors, or of a matrix with one."""
    a = call.argument(0, "input", call.kwargs.get("self"))
    b = next(v for v in (*call.args[1:], *call.kwargs.values()) if isinstance(v, Tensor))
    equation = _PRODUCTS[call.name]
    if call.name == "inner":
        if not a.dim() or not b.dim():
            return recording.refuse(call.run(), call.name)
        ia, ib = _LETTERS[: a.dim() - 1], _LETTERS[26 : 25 + b.dim()]
        equation = f"{ia}z,{ib}z->{ia}{ib}"
    with recording.active():
        return run_einsum(equation, [a, b])


def _read_arguments(args: Sequence[Any]) -> tuple[str, list[Tensor]]:
    """Equation and operands, which may also come as one list, or as lists of numbers in turn."""
    equation, *operands = args
    if isinstance(equation, str):
        listed = len(operands) == 1 and isinstance(operands[0], list | tuple)
        return equation, list(operands[0]) if listed else operands

    def spell(indices: Sequence[Any]) -> str:
        return "".join("..." if i is Ellipsis else _LETTERS[i] for i in indices)

    pairs = list(zip(args[::2], args[1::2], strict=False))
    result = f"->{spell(args[-1])}" if len(args) % 2 else ""
    return ",".join(spell(indices) for _, indices in pairs) + result, [x for x, _ in pairs]


def run_einsum(equation: str, operands: Sequence[Tensor]) -> Tensor:
    """Compute an einsum by permutations, sums, and matrix products of two factors."""
    terms, result = parse_einsum(equation, operands)
    operands = [_take_diagonals(x, term) for x, term in zip(operands, terms, strict=True)]
    terms = ["".join(dict.fromkeys(term)) for term in terms]
    sizes: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for i, size in zip(term, x.shape, strict=True):
            sizes[i] = max(size, sizes.get(i, 1))
    total, indices = operands[0], terms[0]
    for number in range(1, len(operands)):
        later = "".join(terms[number + 1 :])
        kept = [i for i in dict.fromkeys(indices + terms[number]) if i in result + later]
        last = "".join(kept) if number < len(operands) - 1 else result
        pair = (
            _expand(total, indices, terms[number], sizes),
            _expand(operands[number], terms[number], indices, sizes),
        )
        total, indices = _multiply_pair(indices, terms[number], last, *pair), last
    total, indices = _sum_away(total, indices, result)
    return total.permute([indices.index(i) for i in result])


def parse_einsum(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """The indices of each operand and of the result, with letters in the place of dots."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    spare = "".join(c for c in _LETTERS[::-1] if c not in equation)
    named, dots = [], ""
    for term, operand in zip(terms.split(","), operands, strict=True):
        unnamed = operand.dim() - len(term.replace("...", ""))
        letters = spare[:unnamed][::-1]  # dots stand for the last ones that broadcast
        named.append(term.replace("...", letters))
        dots = max(dots, letters, key=len)
    if not arrow:
        once = sorted(i for i in set(terms) - set(".,") if "".join(named).count(i) == 1)
        return named, dots + "".join(once)
    return named, result.replace("...", dots)


def _take_diagonals(x: Tensor, term: str) -> Tensor:
    """An operand of which an index is repeated, with that index once."""
    own = list(term)
    for i in dict.fromkeys(term):
        while own.count(i) > 1:
            first = own.index(i)
            second = own.index(i, first + 1)
            x = x.diagonal(dim1=first, dim2=second).movedim(-1, first)
            del own[second]
    return x


def _expand(x: Tensor, own: str, other: str, sizes: dict[str, int]) -> Tensor:
    """A factor in the size of what it is multiplied with, where it has a length of 1."""
    shape = [sizes[i] if i in other else n for i, n in zip(own, x.shape, strict=True)]
    return x if shape == list(x.shape) else x.expand(shape)


def _multiply_pair(ia: str, ib: str, result: str, a: Tensor, b: Tensor) -> Tensor:
    """Compute an einsum of two operands as reshapes around one matrix product."""
    # An index that one operand has alone and the result lacks is summed away first.
    a, ia = _sum_away(a, ia, ib + result)
    b, ib = _sum_away(b, ib, ia + result)
    size = {**dict(zip(ia, a.shape, strict=True)), **dict(zip(ib, b.shape, strict=True))}
    batch = [i for i in result if i in ia and i in ib]
    rows = [i for i in result if i in ia and i not in ib]
    columns = [i for i in result if i in ib and i not in ia]
    inner = [i for i in ia if i in ib and i not in result]

    def arrange(x: Tensor, own: str, first: list[str], second: list[str]) -> Tensor:
        x = x.permute([own.index(i) for i in batch + first + second])
        lengths = (math.prod(size[i] for i in group) for group in (first, second))
        return x.reshape(*(size[i] for i in batch), *lengths)

    product = arrange(a, ia, rows, inner) @ arrange(b, ib, inner, columns)
    order = batch + rows + columns
    return product.reshape([size[i] for i in order]).permute([order.index(i) for i in result])


def _sum_away(x: Tensor, own: str, kept: str) -> tuple[Tensor, str]:
    gone = [n for n, i in enumerate(own) if i not in kept]
    return (x.sum(gone), "".join(i for i in own if i in kept)) if gone else (x, own)
