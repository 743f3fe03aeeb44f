"""Sections whose rows are processes of their own: starting, and the first result."""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from . import models
from .rounds import BASELINE_VARIANT, Group, Run

BENCHMARKS = Path(__file__).parents[1]
COMMAND = """import runpy, sys, tempfile
from whence.demo import FOLDER
with tempfile.TemporaryDirectory() as out:
    sys.argv[1:] = {}
    runpy.run_module("whence.cli", run_name="__main__")"""
LINES = {
    "Python alone": "",
    "import whence": "import whence",
    "whence --help": COMMAND.format('["--help"]'),
    "whence models": COMMAND.format('["models"]'),
    "import numpy": "import numpy",
    "import torch": "import torch",
    "from whence import Explainer": "from whence import Explainer",
    "import transformers": "import transformers",
    "whence explain cat.jpg": COMMAND.format('["explain", str(FOLDER / "cat.jpg"), "--out", out]'),
}
# Where torch, Triton and whence keep what they compiled.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


def list_starts() -> Group:
    """Processor time of a Python of its own for each line."""

    def start(code: str) -> Run:
        command = [sys.executable, "-c", code]
        return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    runs = {
        (name, BASELINE_VARIANT if name == "Python alone" else "plain"): start(code)
        for name, code in LINES.items()
    }
    return Group(
        section="start",
        title="Start: processor time of a fresh process",
        setting={},
        runs=runs,
        baseline="Python alone",
        unit="of Python alone",
        calls=0,
        clock=_measure_processor_seconds,
    )


def _measure_processor_seconds(run: Run) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def list_first_results(
    size: str, options: argparse.Namespace, device: torch.device
) -> Iterator[Group]:
    """The first call of `explain` in a fresh process, whose model is loaded."""
    precision = options.precision or ("tf32" if device.type == "cuda" else None)
    for batch in options.batch or [1]:
        for method in options.methods or ["whence"]:
            arguments = ["--size", size, "--device", str(device), "--batch", str(batch)]
            arguments += ["--method", method, *(["--precision", precision] if precision else [])]
            name = models.name_classifier(size)
            yield Group(
                section="first",
                title=f"First result of a fresh process: {name}, {device.type}",
                setting={"batch": batch, "method": method},
                runs=_FreshProcesses(arguments).list_runs(),
                baseline="plain",
                unit="first plain results",
                calls=0,
                clock=lambda run: run(),
            )


class _FreshProcesses:
    """Processes that share a folder for caches, which the second begins with an empty one."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="whence-first-")

    def list_runs(self) -> dict[tuple[str, str], Run]:
        return {
            ("plain", BASELINE_VARIANT): self._run,
            ("compiled, empty cache on disk", "compiled"): self._run_with_empty_cache,
            ("compiled, warm cache on disk", "compiled"): lambda: self._run("--compile"),
        }

    def _run_with_empty_cache(self) -> float:
        for inner in Path(self._folder.name).iterdir():
            shutil.rmtree(inner)
        return self._run("--compile")

    def _run(self, *more: str) -> float:
        """Seconds that the process says it took."""
        paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
        caches = {name: str(Path(self._folder.name) / name) for name in CACHES}
        answer = subprocess.run(
            [sys.executable, "-m", "timing.first_result", *self._arguments, *more],
            env={**os.environ, **caches, "PYTHONPATH": os.pathsep.join(paths)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return float(json.loads(answer.stdout.splitlines()[-1])["seconds"])
