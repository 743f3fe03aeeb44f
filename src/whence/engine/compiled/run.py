"""The compiled run: requests by compiled programs, each compared with an eager run before use."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from whence._util.collecting import hold_off_collection
from whence._util.sending import send
from whence.engine import checks
from whence.engine.compiled.making import (
    CompiledProgram,
    Inputs,
    NotCompilableError,
    ProgramOutput,
    fuse_program,
    list_checks,
    record_program,
)
from whence.engine.compiled.program import GraphMemory
from whence.engine.eager import (
    match_tokens,
    record_request,
    run_eagerly,
    score,
    split_by_layers,
)
from whence.engine.request import Request, Result
from whence.errors import WhenceError
from whence.evidence.plain import run_plainly
from whence.inputs.arguments import is_plain, list_tensors
from whence.layout import FoundLayout
from whence.targets import AskedClasses, ClassScalars
from whence.tracing.ops.guard import Guard
from whence.tracing.registration import registered_kinds

# So many are kept: methods that take turns must not push each other out. They share their memory.
_MAX_PROGRAMS = 32
_compile_lock = threading.Lock()  # torch's compiler works for one thread at a time
# A recorded program is fused once its runs took about as long as fusing takes: who explains a few
# inputs waits for no compiler, and who explains many has waited twice as long as needed at most.
_SECONDS_BEFORE_FUSING = 10.0

# Where an operator takes less time than Python needs to call it, what recurs is recorded unasked.
_RECORDED_UNASKED = ("cuda",)
# So often the like was explained before: by then it took about as long as recording does.
_USES_BEFORE_RECORDING = 4
# The share of a GPU's memory that a program may hold that nobody asked for.
_SHARE_HELD = 1 / 16
_MAX_COUNTED = 256
# How far logits may be from the model's: so many times as far as when the program was recorded, and
# so many units of rounding. Types that round more than this are too coarse to tell.
_ROUNDED = 16.0
_ROUNDED_LOGITS = 512.0
_COARSE = 1e-4

Compiling = Literal["never", "if it recurs", "when it pays", "now"]
"""When to compile: never; recorded if it recurs, where that pays; as far as it pays; or all at
once. Programs that exist are used."""


def check_compilable(request: Request) -> None:
    """Refuse a request that no program can be made for.

    Raises:
        WhenceError: It asks for what is none of the classes, for several inputs, or for a method of
            many passes.
    """
    if not isinstance(request.asked, AskedClasses):
        raise WhenceError("Classes of a classifier can be compiled, not other targets.")
    if request.arguments.others_at:
        raise WhenceError("One input at a time can be compiled: give `of` a single name.")
    if "forwards" in request.method.needs:
        raise WhenceError(
            f"Method '{request.method_name}' runs the model many times, which cannot be compiled; "
            f"explain with it directly."
        )


class CompiledRunner:
    """Runs requests by compiled programs, of which it keeps the most recently used.

    Args:
        model: Where its weights are is part of what was compiled.
        settings: Whatever else than the request decides what is computed.
    """

    def __init__(self, model: nn.Module, *settings: Hashable) -> None:
        self._model = model
        self._settings = settings
        self._lock = threading.Lock()  # a program works in memory of its own, for one at a time
        self._programs: OrderedDict[Hashable, CompiledProgram | None] = OrderedDict()
        self._memory: GraphMemory | None = None
        self._uses = Counter[Hashable]()
        self._refused = set[Hashable]()  # what cannot be recorded unasked

    def __reduce__(self) -> tuple[type[CompiledRunner], tuple[object, ...]]:
        """A copy, which another process may want, begins anew."""
        return CompiledRunner, (self._model, *self._settings)

    @property
    def has_programs(self) -> bool:
        """Whether anything was compiled."""
        return bool(self._programs)

    def count_use(self, request: Request) -> bool:
        """Count a request; tell whether the like recurs, so that a program should be recorded."""
        main = request.arguments.main
        if main.device.type not in _RECORDED_UNASKED or not _may_be_program(request):
            return False
        key = _describe_use(request)
        if len(self._uses) >= _MAX_COUNTED:
            self._uses.clear()
        self._uses[key] += 1
        return self._uses[key] > _USES_BEFORE_RECORDING

    def run(
        self, request: Request, max_map_bytes: float, class_count: int, *, compiling: Compiling
    ) -> Callable[[], Result] | None:
        """Start a program on the request.

        Args:
            request: What to explain.
            max_map_bytes: Attention with larger maps is recorded without them.
            class_count: How many classes the model had before.
            compiling: Whether to compile what was not yet compiled.

        Returns:
            Gives the result; None if there is no program for the request.
        """
        inputs, weights = _collect_inputs(request, class_count), list_tensors(self._model)
        if inputs is None or len({x.device for x in (*inputs.values(), *weights)}) != 1:
            return None
        shapes = tuple((name, tuple(x.shape), x.dtype) for name, x in inputs.items())
        places = hash(tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in weights))
        registered = frozenset(registered_kinds.items())
        settings = (*self._settings, torch.get_float32_matmul_precision(), max_map_bytes)
        key: Hashable = (
            *(settings, registered, _describe(request), shapes, class_count),
            *(self._model.training, places),
        )
        is_unasked, asks = compiling == "if it recurs", compiling in ("when it pays", "now")
        with self._lock, torch.cuda.device_of(next(iter(inputs.values()))):  # type: ignore[no-untyped-call]
            known = self._programs.get(key)
            if asks and known is not None and not known.is_asked and known.recorded is None:
                del self._programs[key]  # what was captured unasked cannot be fused
            is_full = len(self._programs) >= _MAX_PROGRAMS
            may_record = not is_unasked or not (is_full or key in self._refused)
            if key not in self._programs and (compiling == "never" or not may_record):
                return None
            if self._memory is None and request.arguments.main.is_cuda:
                self._memory = GraphMemory()
            if key not in self._programs:
                compute = partial(_compute, request, max_map_bytes)
                if is_full:
                    self._programs.popitem(last=False)
                with _compile_lock, hold_off_collection():
                    made = record_program(
                        request.method_name, compute, inputs, self._memory, not is_unasked
                    )
                if is_unasked and (made is None or not _is_fit(made, request, inputs)):
                    if len(self._refused) >= _MAX_COUNTED:
                        self._refused.clear()
                    self._refused.add(key)
                    return None
                self._programs[key] = made
            self._programs.move_to_end(key)
            program = self._programs[key]
            if program is None:
                return None
            program.is_asked |= asks
            is_used = program.runs * program.seconds >= _SECONDS_BEFORE_FUSING
            if program.recorded is not None and (
                compiling == "now" or (compiling == "when it pays" and is_used)
            ):
                with _compile_lock:
                    given = list(inputs.values())
                    fuse_program(request.method_name, program, given, self._memory)
            program.runs += 1
            output = ProgramOutput(*program.run(*inputs.values()))
        if program.is_asked:
            return partial(_confirm, request, max_map_bytes, output, program)
        is_same = _measure_change(request, output.logits) <= program.rounding
        output = output._replace(valid=output.valid & is_same)
        forget = partial(self._forget, key, _describe_use(request))
        return partial(_confirm, request, max_map_bytes, output, program, forget)

    def _forget(self, key: Hashable, use: Hashable) -> None:
        """Forget a program; another may be recorded when the like has recurred as often again."""
        with self._lock:
            self._programs.pop(key, None)
            self._uses.pop(use, None)


def _is_fit(program: CompiledProgram, request: Request, inputs: Inputs) -> bool:
    """Whether a program that nobody asked for holds little, and leaves nothing out that is told.

    How far its logits are from the model's own, by rounding, is noted. In types of 16 bits, that
    is so far that a model which has changed would not be noticed.
    """
    program.is_asked = False
    most = torch.cuda.mem_get_info()[1] * _SHARE_HELD if program.held_bytes else 0
    if program.coverage or program.held_bytes > most:
        return False
    logits = ProgramOutput(*program.run(*inputs.values())).logits
    eps = float(torch.finfo(logits.dtype).eps)
    distance = float(_measure_change(request, logits))
    program.rounding = _ROUNDED * distance + _ROUNDED_LOGITS * eps
    return eps < _COARSE and distance < _COARSE**0.5


def _measure_change(request: Request, logits: Tensor) -> Tensor:
    """How far the model's logits are from those that a program has for the same inputs.

    Much can change what a model computes: its attributes, its hooks, a setting that it reads
    somewhere. Who asks for compiling knows; for who does not, the model itself is run, too.
    """
    subject = request.subject
    with torch.no_grad(), subject.stand_ins.borrow(subject.model) as stand_in:
        plain = run_plainly(stand_in, request.arguments, request.output)
    if plain.shape != logits.shape:
        return torch.full((), torch.inf, device=logits.device)
    return checks.compare_logits(logits, plain).max()


def _confirm(
    request: Request,
    max_map_bytes: float,
    output: ProgramOutput,
    program: CompiledProgram,
    forget: Callable[[], None] | None = None,
) -> Result:
    """The result of a program, or of an eager run where the program's guards do not hold."""
    if not bool(output.valid):
        if forget is not None:
            forget()
        return run_eagerly(request, float("inf"), max_map_bytes)
    layout, columns = program.layout, program.columns
    tokens = match_tokens(request, layout)
    figures = dict(zip(program.checks, output.figures, strict=True))
    if program.coverage == 0:
        figures["coverage"] = output.logits.new_zeros(request.batch)
    return Result(
        output.scores, output.classes, output.logits, layout, tokens, columns, figures=figures
    )


def _describe_use(request: Request) -> Hashable:
    """What requests have in common that recur."""
    shapes = tuple([tuple(x.shape) for x in request.arguments.tensors])
    return request.method, request.rules, shapes


def _may_be_program(request: Request) -> bool:
    """Whether a request is one of those that programs are made for."""
    apart = request.keep_evidence or request.verify or bool(request.arguments.others_at)
    is_classes = isinstance(request.asked, AskedClasses)
    return is_classes and not apart and "forwards" not in request.method.needs


def _collect_inputs(request: Request, class_count: int) -> dict[str, Tensor] | None:
    """The tensors that a program takes; None where a program cannot stand for the request."""
    asked = request.asked
    if not _may_be_program(request) or not isinstance(asked, AskedClasses):
        return None
    if not is_plain(request.arguments.others):
        return None  # tensors inside of them would stay as they were when it was recorded
    inputs = {f"argument {n}": x for n, x in enumerate(request.arguments.tensors)}
    like, names = torch.empty(request.batch, class_count), request.subject.class_names
    named = {} if asked.top_count else {"classes": partial(asked.resolve_classes, like, names)}
    if asked.against is not None:
        named["against"] = partial(asked.resolve_against, like, names)
    for name, resolve in named.items():
        try:
            inputs[name] = send(resolve(), request.arguments.main.device)
        except WhenceError:
            return None  # the model may have other classes by now: the eager run tells
    if request.special is not None:
        inputs["special"] = request.special
    return inputs


def _describe(request: Request) -> tuple[Hashable, ...]:
    """What of a request, other than tensors, decides what is computed."""
    kwargs = request.arguments.kwargs
    named = request.arguments.main_at, *kwargs
    rules = request.rules, request.method.gradient_rules
    return request.method, rules, request.asked.top_count, named, repr(request.arguments.others)


def _compute(
    request: Request,
    max_map_bytes: float,
    inputs: Inputs,
    guard: Guard,
    layout: FoundLayout | None = None,
) -> tuple[ProgramOutput, Result]:
    """Explain the request with other tensors; values are looked at through the guard alone."""
    tensors = [x for name, x in inputs.items() if name.startswith("argument")]
    request = dataclasses.replace(request, arguments=request.arguments.replace_tensors(tensors))
    trace = record_request(request, guard, float("inf"), max_map_bytes)
    logits = trace.logits.detach()
    asked, names = request.asked, request.name_columns(trace.columns, logits.shape[1])
    if not isinstance(asked, AskedClasses):
        raise RuntimeError("only classes are compiled")
    if guard.sees_values:  # refuses classes that the model does not have any more
        asked.resolve(logits, names)
    classes, against = inputs.get("classes"), inputs.get("against")
    classes = asked.resolve_classes(logits, {}) if classes is None else classes
    against = None if against is None else against.expand_as(classes)
    targets = ClassScalars(classes, against, request.subject.multi_label)
    parts = split_by_layers(request, trace, targets)
    if parts is None:
        raise NotCompilableError("targets of several samples depend on different layers")
    if layout is not None and len(parts) > 1:
        raise RuntimeError("targets depend on different layers")
    if layout is not None and layout.by_value:
        raise RuntimeError("values decide which token stands for which part of the input")
    result = score(request, parts, inputs.get("special"), known=layout)
    if result.details and not guard.sees_values:
        raise RuntimeError("the method has details to tell, which a program does not compute")
    valid = torch.isfinite(logits).all() & torch.isfinite(result.scores).all()
    valid = valid if against is None else valid & (classes != against).all()
    failure = guard.any_failure()
    valid = valid if failure is None else valid & ~failure
    measured = [result.figures[name] for name in list_checks(result)]
    figures = torch.stack(measured) if measured else logits.new_empty(0, request.batch)
    return ProgramOutput(result.scores, classes, logits, figures, valid), result
