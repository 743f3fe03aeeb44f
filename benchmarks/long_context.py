"""Time and peak memory of explanations of a language model with a long context, in one run.

    python benchmarks/long_context.py --shape 8b --tokens 4096
    python benchmarks/long_context.py --shape 1b --tokens 8192 --only whence attnlrp gae
    python benchmarks/long_context.py --shape 1b --tokens 320 --generated 64
    python benchmarks/long_context.py --shape 8b --tokens 4096 --only attnlrp --baseline --profile

The model is a Llama with random weights in bfloat16, which cost as much as trained ones. A row is
the last of three runs; memory is all that was allocated at most, weights included. Methods of one
forward pass for each token run for some of them, and the time of all is estimated. With
``--generated``, the last tokens are explained together, each as what the model says after the
tokens before it, and the time is told in those of one of them.

``--baseline`` measures what a library could do at best that patches the model: input times gradient
by autograd with norms and gates as constants and products halved, as AttnLRP has it, without maps;
without and with torch's gradient checkpointing by block. ``--lxt`` measures AttnLRP by lxt, where
it is installed (``pip install --no-deps lxt==2.1``), and how far its scores agree. ``--profile``
lists the kernels of each row that take the most time on the GPU, and the functions that take it on
the CPU.
"""

import argparse
import contextlib
import cProfile
import gc
import json
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch.utils.checkpoint
import transformers
from timing.models import LLAMA_SHAPES, build_llama

from whence import Explainer, targets
from whence.evidence import Forwards

METHODS = (
    "whence",
    "tiba",
    "gae",
    "attnlrp",
    "rollout",
    "attention_norm",
    "input_x_gradient",
    "integrated_gradients",
    "value_zeroing",
    "occlusion",
)
# Methods of one forward pass for each token: so many of them are measured.
PASSES = {"value_zeroing": 4, "occlusion": 16}


@contextlib.contextmanager
def run_some_chunks(count: int) -> Iterator[list[float]]:
    """While on, methods of many passes end after some chunks; their share of all is noted."""
    chunks, shares = Forwards.chunks, []

    def some(self: Forwards, rows: int, doing: str, at_once: int | None = None) -> Iterator[slice]:
        done = 0
        for number, chunk in enumerate(chunks(self, rows, doing, at_once)):
            yield chunk
            done = chunk.stop
            if number + 1 == count:
                break
        shares.append(done / rows)

    Forwards.chunks = some
    try:
        yield shares
    finally:
        Forwards.chunks = chunks


def measure(run: Callable[[], Any], device: torch.device, runs: int = 3) -> tuple[float, float]:
    """Seconds of the last of some runs, and the largest number of bytes in use.

    The first run takes its memory from the GPU, and the others from torch, as those of users do.
    """
    seconds = peak = 0.0
    for number in range(runs):
        gc.collect()
        if device.type == "cuda":
            if number == 0:
                torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
            peak = max(peak, torch.cuda.max_memory_allocated())
        seconds = time.perf_counter() - start
    return seconds, peak


def run_backward(model: torch.nn.Module, ids: torch.Tensor) -> None:
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=embeddings, use_cache=False).logits[0, -1].max().backward()


class HeldNorm(torch.nn.Module):
    """An RMSNorm whose denominator is a constant for autograd."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize rows."""
        wide = x.float()
        spread = torch.rsqrt(wide.detach().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * spread).to(x.dtype)


class HalvedProducts(torch.nn.Module):
    """A gated feed-forward part whose gate is a constant, and whose product is halved."""

    def __init__(self, mlp: torch.nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the feed-forward part."""
        gate = self.mlp.gate_proj(x)
        held = gate * torch.sigmoid(gate.detach())
        product = held * self.mlp.up_proj(x)
        return self.mlp.down_proj(product / 2 + (product / 2).detach())


@contextlib.contextmanager
def patch_rules(model: torch.nn.Module) -> Iterator[None]:
    """While on, autograd's gradients of a Llama are AttnLRP's, but for attention's halves."""
    layers, names = model.model.layers, ("input_layernorm", "post_attention_layernorm", "mlp")
    before = [{name: getattr(layer, name) for name in names} for layer in layers]
    try:
        for layer in layers:
            layer.input_layernorm = HeldNorm(layer.input_layernorm)
            layer.post_attention_layernorm = HeldNorm(layer.post_attention_layernorm)
            layer.mlp = HalvedProducts(layer.mlp)
        yield
    finally:
        for layer, modules in zip(layers, before, strict=True):
            for name, module in modules.items():
                setattr(layer, name, module)


@contextlib.contextmanager
def checkpoint_blocks(model: torch.nn.Module) -> Iterator[None]:
    """While on, blocks keep what enters them alone, by torch's gradient checkpointing."""
    layers = model.model.layers
    for layer in layers:
        run = type(layer).forward.__get__(layer)
        layer.forward = partial(torch.utils.checkpoint.checkpoint, run, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def measure_baselines(model: torch.nn.Module, ids: torch.Tensor) -> list[dict[str, Any]]:
    rows = []
    for patched in (False, True):
        for checkpointed in (False, True):
            if not (patched or checkpointed):
                continue
            name = "AttnLRP patched by hand" if patched else "forward and backward"
            with contextlib.ExitStack() as stack:
                if patched:
                    stack.enter_context(patch_rules(model))
                if checkpointed:
                    stack.enter_context(checkpoint_blocks(model))
                seconds, peak = measure(lambda: run_backward(model, ids), ids.device, 3)
            what = name + (", checkpointed by block" if checkpointed else "")
            rows.append({"what": what, "seconds": seconds, "peak": peak})
            print(json.dumps(rows[-1]), flush=True)
    return rows


class LxtAttention:
    """Transformers' functions of attention, with the rules of lxt around each.

    lxt puts a plain dict in their place, which releases of transformers since 5 do not take.
    """

    def __init__(self, functions: Any, wrap: Callable[..., Any]) -> None:
        self.functions, self.wrap = functions, wrap

    def get_interface(self, name: str, default: Any) -> Any:
        """The function of a name."""
        return self.wrap(self.functions.get_interface(name, default))

    def __getitem__(self, name: str) -> Any:
        return self.wrap(self.functions[name])


@contextlib.contextmanager
def patch_by_lxt() -> Iterator[None]:
    """While on, autograd's gradients of a Llama are AttnLRP's, by the rules of lxt."""
    from transformers.models.llama import modeling_llama as llama

    # Its list of supported models wants transformers 4.
    sys.modules.setdefault("lxt.efficient.models", MagicMock())
    from lxt.efficient import patches

    attention = LxtAttention(llama.ALL_ATTENTION_FUNCTIONS, patches.wrap_attention_forward)
    with (
        patch.object(llama.LlamaMLP, "forward", patches.gated_mlp_forward),
        patch.object(llama.LlamaRMSNorm, "forward", patches.rms_norm_forward),
        patch.object(llama, "ALL_ATTENTION_FUNCTIONS", attention),
    ):
        yield


def measure_lxt(model: torch.nn.Module, ids: torch.Tensor) -> list[dict[str, Any]]:
    rows, scores = [], torch.empty(0)

    def explain() -> None:
        nonlocal scores
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        model(inputs_embeds=embeddings, use_cache=False).logits[0, -1].max().backward()
        scores = (embeddings * embeddings.grad).float().sum(-1)

    ours = Explainer(model).explain({"input_ids": ids}, method="attnlrp").scores.float()
    for checkpointed in (False, True):
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch_by_lxt())
            if checkpointed:
                stack.enter_context(checkpoint_blocks(model))
            seconds, peak = measure(explain, ids.device)
        agreement = torch.corrcoef(torch.cat([scores.detach(), ours]))[0, 1]
        what = "lxt, AttnLRP" + (", checkpointed by block" if checkpointed else "")
        note = f"correlation with attnlrp {agreement:.5f}"
        rows.append({"what": what, "seconds": seconds, "peak": peak, "note": note})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def print_profile(run: Callable[[], Any], device: torch.device) -> None:
    """Print what takes the most time in one run: kernels of a GPU, and functions of a CPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiled:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
    averages = profiled.key_averages()
    for order in ("self_device_time_total", "self_cpu_time_total")[device.type != "cuda" :]:
        print(averages.table(sort_by=order, row_limit=25, max_name_column_width=90), flush=True)
    profiler = cProfile.Profile()
    profiler.runcall(run)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def measure_methods(
    model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace
) -> list[dict[str, Any]]:
    device = ids.device
    model.requires_grad_(False)
    with torch.no_grad():
        forward, peak = measure(lambda: model(input_ids=ids, use_cache=False), device, 4)
    rows = [{"what": "forward", "seconds": forward, "peak": peak}]
    backward, peak = measure(lambda: run_backward(model, ids), device, 3)
    rows.append({"what": "forward and backward", "seconds": backward, "peak": peak})
    print(json.dumps(rows), flush=True)
    if options.baseline:
        rows += measure_baselines(model, ids)
    explainer = Explainer(model)
    inputs = {"input_ids": ids}
    many = {}
    if options.generated:
        last = range(ids.shape[1] - options.generated - 1, ids.shape[1] - 1)
        many = {"classes": [targets.token(position=n) for n in last]}
    for method in options.only or METHODS:
        asked = {"method": method, "memory": options.memory}

        def explain(**more: Any) -> None:
            explainer.explain(inputs, **asked, **more)  # noqa: B023

        try:
            with run_some_chunks(PASSES.get(method, 10**9)) as shares:
                seconds, peak = measure(explain, device, 1 if method in PASSES else 3)
            share = min(shares, default=1.0)
            row = {"what": method, "seconds": seconds, "peak": peak, "share": share}
            if many:
                row["all"], row["peak"] = measure(lambda: explain(**many), device)
        except Exception as error:  # the other methods are measured all the same
            row = {"what": method, "error": f"{type(error).__name__}: {str(error)[:300]}"}
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.profile and "error" not in row and method not in PASSES:
            print_profile(explain, device)
    if options.lxt:
        rows += measure_lxt(model, ids)
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    forward = rows[0]["seconds"]
    lines = ["| what | s | forwards | peak GB | |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['what']} | | | | {row['error']} |")
            continue
        share = row.get("share", 1.0)
        whole = row["seconds"] / share
        note = f"estimated from {share:.2%} of its passes" if share < 1 else row.get("note", "")
        if "all" in row:
            note = f"all {row['all']:.3f} s, {row['all'] / row['seconds']:.1f} times one"
        lines.append(
            f"| {row['what']} | {whole:.3f} | {whole / forward:.1f} | {row['peak'] / 1e9:.1f} "
            f"| {note} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=LLAMA_SHAPES, default="tiny")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--generated", type=int, default=0, help="so many last tokens together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--memory", type=float, help="gibibytes that an explanation may keep")
    parser.add_argument("--baseline", action="store_true", help="also what autograd takes")
    parser.add_argument("--lxt", action="store_true", help="also AttnLRP by lxt")
    parser.add_argument("--profile", action="store_true", help="print what takes the time")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = build_llama(options.shape, options.tokens, device)
    ids = torch.randint(0, model.config.vocab_size, (1, options.tokens), device=device)
    rows = measure_methods(model, ids, options)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"\n{options.shape}, {options.tokens} tokens, memory {options.memory}, {name}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}\n")
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
