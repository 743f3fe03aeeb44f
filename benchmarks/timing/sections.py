"""The sections of a run: which models, inputs and methods are measured."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence import Explainer, methods, targets

from . import models
from .processes import list_first_results, list_starts
from .rounds import BASELINE_VARIANT, Group, Key, Run

PLAIN, COMPILED, RECORDED = "plain", "compiled", "recorded unasked"
RECURRING = 6  # runs until whence has recorded them of itself
FORWARD, BACKWARD = ("forward", BASELINE_VARIANT), ("forward + backward", BASELINE_VARIANT)
# Rows that are no method with its defaults.
REQUESTS: dict[str, dict[str, Any]] = {
    "tiba, rules reference": {"method": "tiba", "rules": "reference", "target": 0},
    "tiba, 10 classes": {"method": "tiba", "classes": list(range(10))},
    "whence, 10 classes": {"method": "whence", "classes": list(range(10))},
}
COMPILED_METHODS = ("whence", "shared_evidence", "gae", "attnlrp", "rollout", "tiba")
PLAIN_METHODS = (*COMPILED_METHODS, "lrp", *REQUESTS)
GROWTH_METHODS = ("whence", "gae", "tiba")
LONG_METHODS = (*GROWTH_METHODS, "rollout")
BOUNDED, UNBOUNDED = "bounded", "not bounded"
NO_BOUND = 64.0  # gibibytes, which none of these takes
LLAMA_METHODS = (
    "whence",
    "tiba",
    "gae",
    "attnlrp",
    "rollout",
    "attention_norm",
    "input_x_gradient",
)
GROWTH = {
    "cpu": {
        "batch": (1, 2, 4, 8, 16),
        "tokens": (64, 112, 224, 448),
        "layers": (3, 6, 12, 24),
        "classes": (1, 2, 4, 8, 16),
        "generated tokens": (1, 4, 16, 64),
    },
    "cuda": {
        "batch": (1, 4, 16, 64),
        "tokens": (112, 224, 448, 896),
        "layers": (6, 12, 24),
        "classes": (1, 4, 16),
        "generated tokens": (1, 4, 16, 64),
    },
    models.SMOKE: {
        "batch": (1, 2),
        "tokens": (32, 64),
        "layers": (1, 2),
        "classes": (1, 2),
        "generated tokens": (1, 2),
    },
}


def choose_size(options: argparse.Namespace, device: torch.device) -> str:
    """A ViT-Ti on a CPU and a ViT-B on a GPU, if none is asked for."""
    if options.quick:
        return models.SMOKE
    return options.size or ("base" if device.type == "cuda" else "tiny")


def name_place(device: torch.device, precision: str | None) -> str:
    """How tables call the device and what products are computed in."""
    return f"products in {precision or 'float32'}, {device.type}"


def list_plain(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """Explanations without compiling."""
    size, asked = choose_size(options, device), options.methods or PLAIN_METHODS
    model = models.build_classifier(size, device, family=options.family)
    for batch in options.batch or ([1] if device.type == "cuda" else [1, 8]):
        inputs = _make_inputs(options, size, batch, device)
        runs = _list_forwards(model, inputs, options.precision)
        how = {"precision": options.precision}
        runs |= _explain_each(Explainer(model, compile=False, **how), inputs, asked, options)
        if device.type == "cuda":
            again = _explain_each(Explainer(model, **how), inputs, asked, options, RECORDED)
            runs |= {key: _recur_first(run) for key, run in again.items()}
        title = f"Plain: {models.name_classifier(size, options.family)}, "
        title += name_place(device, options.precision)
        yield Group("plain", title, {"batch": batch, **_name_memory(options)}, runs, device)


def list_compiled(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """Explanations plain and compiled, in turns."""
    size, asked = choose_size(options, device), options.methods or COMPILED_METHODS
    on_gpu = device.type == "cuda"
    precision = options.precision or ("tf32" if on_gpu else None)
    model = models.build_classifier(size, device, family=options.family)
    bounds = [options.memory] if options.memory or not on_gpu else [None, 64.0]
    title = f"Compiled: {models.name_classifier(size, options.family)}, "
    title += name_place(device, precision)
    for batch in options.batch or ([64] if on_gpu else [1, 8]):
        inputs = _make_inputs(options, size, batch, device)
        for memory in bounds:
            bounded = argparse.Namespace(**{**vars(options), "memory": memory})
            runs = _list_forwards(model, inputs, precision)
            for method in asked:  # an explainer each: it keeps its compiled programs
                for variant in (PLAIN, COMPILED):
                    explainer = Explainer(model, compile=False, precision=precision)
                    runs |= _explain_each(explainer, inputs, [method], bounded, variant)
                    if variant == COMPILED:
                        key = method, COMPILED
                        runs[key] = _compile_first(runs[key], explainer, inputs, method, memory)
            setting = {"batch": batch, **({"memory": memory or "default"} if on_gpu else {})}
            yield Group("compiled", title, setting, runs, device, calls=3)


def list_methods(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """Every method with its defaults."""
    size = choose_size(options, device)
    model = models.build_classifier(size, device)
    for batch in options.batch or [1]:
        inputs = _make_inputs(options, size, batch, device, family="vit")
        asked = options.methods or methods.available("image")
        runs = {FORWARD: _bind(models.run_forward, model, inputs)}
        runs |= _explain_each(Explainer(model, compile=False), inputs, asked, options)
        notes = {n: f"documented: {methods.describe(n).cost}" for n in asked if n not in REQUESTS}
        title = f"Every method: {models.name_classifier(size)}, {name_place(device, None)}"
        yield Group("methods", title, {"batch": batch}, runs, device, notes=notes)


def list_growth(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """One of batch, tokens, layers, classes and generated tokens is varied at a time."""
    size, asked = choose_size(options, device), options.methods or GROWTH_METHODS
    varied = GROWTH[models.SMOKE if options.quick else device.type]
    for axis, values in varied.items():
        for value in values:
            if axis == "generated tokens":
                yield _make_generated(value, asked, options, device)
                continue
            image = value if axis == "tokens" else models.default_image(size)
            layers = value if axis == "layers" else None
            model = models.build_classifier(size, device, layers=layers, image=image)
            batch = value if axis == "batch" else 1
            inputs = models.make_inputs(batch, device, image=image)
            several = {"classes": list(range(value))} if axis == "classes" and value > 1 else {}
            runs = {FORWARD: _bind(models.run_forward, model, inputs)}
            runs |= _explain_each(
                Explainer(model, compile=False), inputs, asked, options, **several
            )
            shown = (image // models.PATCH) ** 2 + 1 if axis == "tokens" else value
            title = (
                f"Growth with {axis}: {models.name_classifier(size)}, {name_place(device, None)}"
            )
            yield Group("growth", title, {axis: shown}, runs, device)


def list_long(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """A large image and a long text, by the usual bound of memory and without one in effect."""
    asked = options.methods or LONG_METHODS
    size = "tiny" if options.quick else choose_size(options, device)
    image, words = (128, 64) if options.quick else (1024, 4096)
    layers = 2 if options.quick else 4 if device.type == "cpu" else 12
    for family, tokens in (("vit", (image // models.PATCH) ** 2 + 1), ("bert", words)):
        model = models.build_classifier(
            size, device, family=family, layers=layers, image=image, words=words
        )
        inputs = models.make_inputs(1, device, family=family, image=image, words=words)
        runs = {FORWARD: _bind(models.run_forward, model, inputs)}
        for variant, memory in ((BOUNDED, options.memory), (UNBOUNDED, NO_BOUND)):
            bounded = argparse.Namespace(**{**vars(options), "memory": memory})
            explainer = Explainer(model, compile=False)
            runs |= _explain_each(explainer, inputs, asked, bounded, variant)
        title = f"Long inputs: {layers} layers of the width of a ViT-{models.LETTERS[size]}, "
        setting = {"input": "image" if family == "vit" else "text", "tokens": tokens}
        yield Group("long", title + name_place(device, None), setting, runs, device)


def list_llama(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """Language models with long contexts: the next token."""
    small = [("tiny", 32 if options.quick else 256)]
    cases = [("8b", 4096), ("1b", 8192)] if device.type == "cuda" and not options.quick else small
    if options.shape:
        cases = [(options.shape, options.tokens)]
    for shape, tokens in cases:
        model = models.build_llama(shape, tokens, device)
        inputs = {"input_ids": _draw_ids(model, tokens, device)}
        runs = _list_forwards(model, inputs, None)
        asked = options.methods or LLAMA_METHODS
        runs |= _explain_each(Explainer(model, compile=False), inputs, asked, options, target=None)
        setting = {"shape": shape, "tokens": tokens, **_name_memory(options)}
        yield Group("llama", f"Llama in bfloat16, {device.type}", setting, runs, device, calls=2)


def list_first(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:
    """The first result of a fresh process: plain, and compiled with and without a cache on disk."""
    yield from list_first_results(choose_size(options, device), options, device)


def list_start(options: argparse.Namespace, device: torch.device) -> Iterator[Group]:  # noqa: ARG001
    """How long whence takes to start."""
    yield list_starts()


Section = Callable[[argparse.Namespace, torch.device], Iterator[Group]]
SECTIONS: dict[str, Section] = {
    "start": list_start,
    "plain": list_plain,
    "methods": list_methods,
    "growth": list_growth,
    "long": list_long,
    "compiled": list_compiled,
    "first": list_first,
    "llama": list_llama,
}


def choose_sections(options: argparse.Namespace, device: torch.device) -> list[str]:
    """What was asked for, or what fits the device; a quick run starts no processes by itself."""
    if options.only:
        return [name for name in SECTIONS if name in options.only]
    left_out = {"compiled", "first", "start"} if options.quick else set()
    left_out |= {"start"} if device.type == "cuda" else {"llama"}
    return [name for name in SECTIONS if name not in left_out]


def _make_generated(
    count: int, asked: Sequence[str], options: argparse.Namespace, device: torch.device
) -> Group:
    """The last tokens explained together, each as what the model says after those before it."""
    on_gpu = device.type == "cuda"
    shape, tokens = ("1b", 320) if on_gpu else ("small", 128)
    shape, tokens = ("tiny", 16) if options.quick else (shape, tokens)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = models.build_llama(shape, tokens, device, dtype)
    inputs = {"input_ids": _draw_ids(model, tokens, device)}
    last = [targets.token(position=n) for n in range(tokens - count - 1, tokens - 1)]
    runs = {FORWARD: _bind(models.run_forward, model, inputs)}
    runs |= _explain_each(Explainer(model, compile=False), inputs, asked, options, classes=last)
    kind = str(dtype).removeprefix("torch.")
    title = f"Growth with generated tokens: Llama '{shape}', {tokens} tokens in all, "
    title += f"{kind}, {device.type}"
    return Group("growth", title, {"generated tokens": count}, runs, device)


def _make_inputs(
    options: argparse.Namespace,
    size: str,
    batch: int,
    device: torch.device,
    family: str | None = None,
) -> dict[str, Tensor]:
    image = models.default_image(size)
    return models.make_inputs(batch, device, family=family or options.family, image=image)


def _draw_ids(model: nn.Module, tokens: int, device: torch.device) -> Tensor:
    return torch.randint(0, model.config.vocab_size, (1, tokens), device=device)


def _list_forwards(
    model: nn.Module, inputs: dict[str, Tensor], precision: str | None
) -> dict[Key, Run]:
    return {
        FORWARD: _bind(models.run_forward, model, inputs, precision),
        BACKWARD: _bind(models.run_backward, model, inputs, precision),
    }


def _explain_each(
    explainer: Explainer,
    inputs: dict[str, Tensor],
    asked: Sequence[str],
    options: argparse.Namespace,
    variant: str = PLAIN,
    **asked_for: Any,
) -> dict[Key, Run]:
    runs: dict[Key, Run] = {}
    for name in asked:
        request = REQUESTS.get(name) or {"method": name, **(asked_for or {"target": 0})}
        request = {**request, "memory": options.memory}
        runs[name, variant] = lambda request=request: explainer.explain(inputs, **request)
    return runs


def _compile_first(
    run: Run, explainer: Explainer, inputs: dict[str, Tensor], method: str, memory: float | None
) -> Run:
    """A run whose first call fuses its operators: at once, and not when that pays."""
    is_compiled = False

    def compile_and_run() -> Any:
        nonlocal is_compiled
        if not is_compiled:
            explainer.compile(inputs, target=0, method=method, memory=memory)
            is_compiled = True
        return run()

    return compile_and_run


def _recur_first(run: Run) -> Run:
    """A run whose first call runs it so often that whence records it of itself."""
    has_recurred = False

    def recur_and_run() -> Any:
        nonlocal has_recurred
        if not has_recurred:
            has_recurred = True
            for _ in range(RECURRING):
                run()
        return run()

    return recur_and_run


def _bind(function: Callable[..., Any], *arguments: Any) -> Run:
    return lambda: function(*arguments)


def _name_memory(options: argparse.Namespace) -> dict[str, Any]:
    return {"memory": options.memory} if options.memory else {}
