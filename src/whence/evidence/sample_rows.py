"""Which arguments of a model hold one row for each sample, proven by values.

A batch can be cut only along such arguments: a model may compare every image with every text, and
three texts beside three images are not one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError
from whence.evidence.plain import run_plainly
from whence.inputs.arguments import ArgumentKey, ModelArguments
from whence.tracing import replicate

# The pass that others are compared with has at most so many samples, for the sake of memory.
_MOST_SAMPLES = 8
# Numbers that should be equal may differ by a power of what the type resolves, of their size:
# computed by the same kernels, or by those for another shape.
_SAME_SHAPE, _OTHER_SHAPE = 0.8, 2 / 3
_EPS_OF_TF32 = 2.0**-10  # which convolutions on a GPU may be computed in


class SampleRows:
    """Finds the arguments that hold one row for each sample, and remembers them by shapes.

    Args:
        stated: Names of these arguments, if the user says which; what is explained is one of them.
    """

    def __init__(self, stated: Collection[ArgumentKey] | None = None) -> None:
        self._stated = None if stated is None else frozenset(stated)
        self._found: dict[Hashable, frozenset[ArgumentKey] | None] = {}

    def find(
        self,
        model: nn.Module,
        arguments: ModelArguments,
        output: Callable[[Any], Tensor] | None,
        together: Collection[ArgumentKey],
    ) -> ModelArguments | None:
        """The arguments, which then can be cut along the batch; None if that is not proven.

        Args:
            model: The model; a stand-in of it is run.
            arguments: Its arguments.
            output: Gets the logits from what it returns.
            together: Arguments that must be among those that are cut.

        Raises:
            WhenceError: The user states arguments that cannot be it.
        """
        batch, shapes = len(arguments.main), []
        for name, value in arguments.named_tensors.items():
            rows = None if _has_rows(value, batch) else value.shape[:1]
            shapes.append((name, rows, value.shape[1:], value.dtype))
        key = arguments.main_at, frozenset(together), tuple(shapes)
        if self._stated is not None:
            return arguments.with_rows(self._check_stated(arguments, together))
        if key not in self._found:
            self._found[key] = _prove(model, arguments, output, together)
        found = self._found[key]
        return None if found is None else arguments.with_rows(found)

    def _check_stated(
        self, arguments: ModelArguments, together: Collection[ArgumentKey]
    ) -> frozenset[ArgumentKey]:
        stated = (self._stated or frozenset()) | frozenset(together)
        batch, tensors = len(arguments.main), arguments.named_tensors
        for name in stated:
            if name not in tensors:
                raise WhenceError(
                    f"per_sample names {name!r}, which is no tensor of the inputs; they hold "
                    f"{', '.join(map(repr, tensors))}."
                )
            if not _has_rows(tensors[name], batch):
                raise WhenceError(
                    f"per_sample names {name!r}, which has shape {tuple(tensors[name].shape)} and "
                    f"not one row for each of {batch} sample(s)."
                )
        return stated


def _has_rows(value: Tensor, batch: int) -> bool:
    return value.dim() > 0 and len(value) == batch


@torch.no_grad()
def _prove(
    model: nn.Module,
    arguments: ModelArguments,
    output: Callable[[Any], Tensor] | None,
    together: Collection[ArgumentKey],
) -> frozenset[ArgumentKey] | None:
    """The first candidate for which the logits of a sample do not depend on the other samples."""
    stand_in = replicate(model)

    def run(chosen: ModelArguments) -> Tensor | None:
        try:
            return run_plainly(stand_in, chosen, output)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a model fails in its own ways where shapes do not fit
            return None

    batch = len(arguments.main)
    samples = torch.linspace(0, batch - 1, min(batch, _MOST_SAMPLES), device="cpu").long()
    whole = run(arguments) if batch <= _MOST_SAMPLES else None
    for names in _list_candidates(arguments, together):
        chosen = arguments.with_rows(names)
        expected = run(chosen.select_rows(samples)) if batch > _MOST_SAMPLES else whole
        if expected is None or len(expected) != len(samples):
            continue
        pair = chosen.select_rows(samples[[0, -1]])
        found, changed = run(pair), run(pair.map_rows(_change_last))
        if found is None or changed is None or found.shape != (2, *expected.shape[1:]):
            continue
        types = {expected.dtype, *(p.dtype for p in model.parameters() if p.is_floating_point())}
        eps = max(torch.finfo(one).eps for one in types)
        coarse = max(eps, _EPS_OF_TF32) if expected.is_cuda else eps
        near = _is_near(found, expected[[0, -1]], coarse**_OTHER_SHAPE)
        if near and _is_near(changed[:1], found[:1], eps**_SAME_SHAPE):
            return names
    return None


def _list_candidates(
    arguments: ModelArguments, together: Collection[ArgumentKey]
) -> Iterator[frozenset[ArgumentKey]]:
    """All arguments of so many rows; those of the main one's length, such as masks; the fewest."""
    main, tensors = arguments.main, arguments.named_tensors
    fewest = frozenset(together) | {arguments.main_at}
    if not all(_has_rows(tensors[name], len(main)) for name in fewest):
        return
    alike = {name for name, value in tensors.items() if value.shape[:2] == main.shape[:2]}
    every = {name for name, value in tensors.items() if _has_rows(value, len(main))}
    yield from dict.fromkeys((frozenset(every), fewest | alike, fewest))


def _change_last(value: Tensor) -> Tensor:
    """Other numbers in the last of two rows: its own, moved about.

    Whole numbers that belong together, such as the corners of a token's box, stay together.
    """
    if value.dim() == 1:
        return value[[0, 0]]
    last, moves = value[-1:], value.is_floating_point()
    axes = list(range(1, value.dim())) if moves or value.shape[1] == 1 else [1]
    return torch.cat([value[:1], last.roll([1] * len(axes), axes)])


def _is_near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    distance = (found.double() - expected.double()).abs().max()
    return bool(distance <= tolerance * expected.double().abs().max())
