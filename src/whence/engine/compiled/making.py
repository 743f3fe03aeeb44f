"""Make programs: record what is computed, compare it with the eager run, and fuse its operators."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whence._util.progress import bar
from whence._util.text import first_line
from whence._util.torch_graphs import precompile_header
from whence.engine.compiled.guards import AssumingGuard, NotingGuard, RefuseConversions, all_hold
from whence.engine.compiled.program import CudaGraph, GraphMemory, Program
from whence.engine.request import Result
from whence.layout import FoundLayout

# How far scores may be from those of the eager run, which rounds otherwise: in bfloat16 by 0.01.
_TOLERANCE = 0.05
# On a CPU, regions that occur once are not worth the seconds that a C++ compiler takes for them.
_FEWEST_REPETITIONS = 2

Run = Callable[..., tuple[Tensor, ...]]
"""Takes the tensors of a program, and returns those that it computes."""

_Recorded = Program[tuple[Tensor, ...]] | None

Inputs = Mapping[str, Tensor]
"""The tensors that a program takes, by name."""


class NotCompilableError(Exception):
    """The eager run can explain a request, and no single program can."""


class ProgramOutput(NamedTuple):
    """The tensors that a program computes.

    Attributes:
        scores: (batch, classes, units).
        classes: (batch, classes), the explained class indices.
        logits: (batch, all classes).
        figures: (checks, batch), how far each check is from being passed.
        valid: A single truth value: all is finite, no shortcut failed, and all guards hold.
    """

    scores: Tensor
    classes: Tensor
    logits: Tensor
    figures: Tensor
    valid: Tensor


@dataclass
class CompiledProgram:
    """A compiled program, and what of its results does not depend on values.

    Attributes:
        run: Runs it.
        layout: Where the tokens stand whose scores it computes.
        columns: What the columns of the logits stand for, if it is no classes.
        coverage: The figure of this check, where one was measured and holds for all values: the
            graph proves that the input is read through these tokens alone.
        checks: The names of the checks that it measures in each run.
        recorded: Its operators, while torch's compiler has not fused them.
        seconds: How long a run took.
        runs: How often it ran.
        is_asked: Whether the user asked for it; else the model itself runs beside it.
        rounding: How far its logits may then be from the model's.
    """

    run: Run
    layout: FoundLayout
    columns: str | None
    coverage: float | None = None
    checks: tuple[str, ...] = ()
    recorded: _Recorded = None
    seconds: float = 0.0
    runs: int = 0
    is_asked: bool = True
    rounding: float = 0.0

    @property
    def held_bytes(self) -> int:
        """How much memory of a GPU it holds between runs, beside that of others."""
        return self.run.held_bytes if isinstance(self.run, CudaGraph) else 0


Compute = Callable[..., tuple[ProgramOutput, Result]]
"""Explains inputs; values are looked at through a guard alone."""


def record_program(
    name: str,
    compute: Compute,
    inputs: Inputs,
    memory: GraphMemory | None = None,
    is_asked: bool = True,
) -> CompiledProgram | None:
    """Record a computation for inputs of these shapes, while progress is shown.

    Args:
        name: The name of the method.
        compute: Takes the inputs, a guard and a layout.
        inputs: Its inputs.
        memory: The memory of CUDA graphs.
        is_asked: Whether the user asked for it; else nothing is shown, and on a GPU the eager run
            is captured as it is, if that is possible.

    Returns:
        A program that gives the scores of the eager run; None, and a warning, if that cannot be.
    """
    guard = NotingGuard()
    names, example = list(inputs), [x.detach().clone() for x in inputs.values()]
    steps = 4 if is_asked else 0  # of none, nothing is shown
    with bar(_describe_work(name, example, "recording"), steps, beside=True) as advance:
        try:
            expected, result = compute(inputs, guard)
        except NotCompilableError as error:
            _warn_of_eager_runs(name, first_line(error), is_asked)
            return None
        except Exception:  # of what a user did not ask for, a plain run tells what is wrong
            if is_asked:
                raise
            return None
        advance(1)

        def compute_tensors(*tensors: Tensor) -> ProgramOutput:
            assuming = AssumingGuard(guard.noted)
            with RefuseConversions():
                output, _ = compute(dict(zip(names, tensors, strict=True)), assuming, result.layout)
                return output._replace(valid=all_hold([output.valid, *assuming.conditions]))

        try:
            direct = None if is_asked else _capture_directly(compute_tensors, example, memory)
            run, recorded = direct or _record(compute_tensors, example, memory, advance)
            advance(1)
            seconds, reason = _compare(run, example, expected)
        except Exception as error:  # what is computed can be anything
            reason = _describe_failure(error, example)
    if not reason:
        around = result.figures.get("coverage")
        coverage = None if around is None else float(around.max())
        found = result.layout, result.columns, coverage, list_checks(result)
        return CompiledProgram(run, *found, recorded=recorded, seconds=seconds)
    _warn_of_eager_runs(name, reason, is_asked)
    return None


def _warn_of_eager_runs(name: str, reason: str, is_asked: bool) -> None:
    if is_asked:
        warnings.warn(
            f"Method '{name}' cannot be compiled for these inputs, so that they are explained as "
            f"without compiling: {reason}",
            stacklevel=3,
        )


def list_checks(result: Result) -> tuple[str, ...]:
    """The checks whose figures are computed of scores, and so in each run."""
    return tuple(sorted(result.figures.keys() - {"coverage"}))


def fuse_program(
    name: str, program: CompiledProgram, inputs: Sequence[Tensor], memory: GraphMemory | None = None
) -> None:
    """Let torch's compiler fuse the operators of a recorded program, while progress is shown.

    Where it cannot, the program stays as it was recorded, and a warning says so.

    Args:
        name: The name of the method.
        program: The program.
        inputs: Inputs of its shapes.
        memory: The memory of CUDA graphs.
    """
    recorded, program.recorded = program.recorded, None  # it is tried once
    if recorded is None:
        return
    expected = ProgramOutput(*program.run(*inputs))
    on_gpu = inputs[0].is_cuda
    program.run = recorded  # a CUDA graph gives its memory back
    try:
        if inputs[0].is_cpu:
            precompile_header()
        doing = _describe_work(name, inputs, "fusing operators")
        with bar(doing, recorded.split(*inputs), beside=True) as advance:
            fewest = 1 if on_gpu else _FEWEST_REPETITIONS
            recorded.compile(*inputs, fewest=fewest, advance=advance)
        program.run = _capture(recorded, inputs, memory)
        program.seconds, reason = _compare(program.run, inputs, expected)
    except Exception as error:  # compilers fail in ways of their own
        reason = _describe_failure(error, inputs)
    if reason:
        recorded.restore()
        program.run = _capture(recorded, inputs, memory)
        warnings.warn(
            f"The operators of method '{name}' cannot be fused for these inputs, so that they run "
            f"one by one: {reason}",
            stacklevel=2,
        )


def _capture(
    program: Program[tuple[Tensor, ...]], inputs: Sequence[Tensor], memory: GraphMemory | None
) -> Run:
    """A program as a CUDA graph, if it runs on a GPU."""
    return CudaGraph(program, inputs, memory) if inputs[0].is_cuda else program


def _record(
    compute: Run,
    inputs: Sequence[Tensor],
    memory: GraphMemory | None,
    advance: Callable[[int], object],
) -> tuple[Run, _Recorded]:
    """What runs a computation, and its operators."""
    recorded = Program(compute, inputs)
    advance(1)
    return _capture(recorded, inputs, memory), recorded


def _capture_directly(
    compute: Run, inputs: Sequence[Tensor], memory: GraphMemory | None
) -> tuple[Run, _Recorded] | None:
    """A CUDA graph of a computation as it runs; None without a GPU, or where it is not possible.

    Operators are not written down, which takes a third of the time. So they cannot be fused.
    """
    if not inputs[0].is_cuda:
        return None
    try:
        return CudaGraph(compute, inputs, memory, has_run=True), None
    except Exception:  # something is copied to the GPU, or waited for
        if memory is not None:
            memory.renew()
        return None


def _describe_work(name: str, inputs: Sequence[Tensor], doing: str) -> str:
    return f"Compiling {name} for {len(inputs[0])} input(s): {doing}"


def _describe_failure(error: Exception, inputs: Sequence[Tensor]) -> str:
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return first_line(error)


def _compare(run: Run, inputs: Sequence[Tensor], expected: ProgramOutput) -> tuple[float, str]:
    """How long a run takes, and what is wrong with its scores; nothing if they are as expected."""
    reason = "" if _agree(ProgramOutput(*run(*inputs)), expected) else "it would give other scores"
    start = time.perf_counter()
    bool(
        ProgramOutput(*run(*inputs)).valid
    )  # waits for a GPU; the first run may have set things up
    return time.perf_counter() - start, reason


def _agree(output: ProgramOutput, expected: ProgramOutput) -> bool:
    """Whether scores are the same but for rounding, even where neither is valid."""
    if bool(output.valid) != bool(expected.valid):
        return False
    if not torch.isfinite(expected.scores).all():
        return not torch.isfinite(output.scores).all()
    distance = (output.scores - expected.scores).norm()
    return bool(distance <= _TOLERANCE * expected.scores.norm())
