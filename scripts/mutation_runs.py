"""Run the tests of mutation testing: once with each test's lines noted, then with faults."""

from __future__ import annotations

import compileall
import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from types import FrameType
from typing import Any

from mutants import Mutant

PRELOADED = ("numpy", "torch", "transformers", "captum", "scipy", "sklearn")  # slow to import
MEMORY = 16 * 2**30  # for each mutant: a fault may ask for memory without end
PASSED, NOTHING_RAN = 0, 5  # exit statuses of pytest
Lines = dict[str, set[int]]


@dataclass
class Coverage:
    """Which test runs which lines.

    Attributes:
        tests: For each test that passes: its seconds, and the lines it runs of each file.
        imported: Lines that run when files are imported.
        modules: Modules of the libraries in `PRELOADED` that the tests use.
        failed: Tests that do not pass without a fault, and are left out.
    """

    tests: dict[str, tuple[float, Lines]]
    imported: Lines
    modules: list[str]
    failed: list[str]

    def select_tests(self, mutant: Mutant, most: int | None = None) -> dict[str, float]:
        """Select the tests that run a mutant's line, with their seconds; short files first."""
        lines = set(range(mutant.first, mutant.last + 1))
        at_import = bool(lines & self.imported.get(mutant.file, set()))
        chosen = {
            name: seconds
            for name, (seconds, ran) in self.tests.items()
            if (ran.get(mutant.file) if at_import else lines & ran.get(mutant.file, set()))
        }
        if at_import and not chosen:
            chosen = {name: seconds for name, (seconds, _) in self.tests.items()}
        totals: dict[str, float] = {}
        for name, seconds in chosen.items():
            totals[_file_of(name)] = totals.get(_file_of(name), 0) + seconds
        ordered = sorted(chosen, key=lambda name: (totals[_file_of(name)], _file_of(name)))
        return {name: chosen[name] for name in ordered[:most]}

    def describe(self) -> str:
        """Count the tests, and name those that are left out."""
        seconds = sum(seconds for seconds, _ in self.tests.values())
        text = f"{len(self.tests)} tests pass without a fault, in {seconds:.0f} s"
        if self.failed:
            text += f"; {len(self.failed)} fail and are left out: {', '.join(self.failed[:5])} …"
        return text


def read_coverage(
    root: Path, source: Path, files: list[Path], tests: list[Path], jobs: int, store: Path | None
) -> Coverage:
    """Run the test files once, some at a time, and note which lines each test runs."""
    if store is not None and store.exists():
        return _load_coverage(json.loads(store.read_text()))
    context = multiprocessing.get_context("fork")
    names = {str(file): file.relative_to(source).as_posix() for file in files}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for i in range(min(jobs, len(tests))):
            listed = [str(test.relative_to(root)) for test in tests[i::jobs]]
            run = _TracedRun(root, source, names, listed, Path(folder, f"{i}.json"))
            processes.append(context.Process(target=run))
            processes[-1].start()
        for process in processes:
            process.join()
        parts = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    if len(parts) < len(processes):
        raise SystemExit("A run of the tests without a fault ended before its time.")
    merged: dict[str, Any] = {"tests": {}, "imported": {}, "modules": [], "failed": []}
    for part in parts:
        merged["tests"].update(part["tests"])
        merged["modules"] = sorted({*merged["modules"], *part["modules"]})
        merged["failed"] += part["failed"]
        for name, lines in part["imported"].items():
            merged["imported"][name] = sorted({*merged["imported"].get(name, []), *lines})
    if store is not None:
        store.write_text(json.dumps(merged))
    coverage = _load_coverage(merged)
    if not coverage.tests:
        raise SystemExit("No test passes without a fault.")
    return coverage


def _load_coverage(data: dict[str, Any]) -> Coverage:
    tests = {
        name: (seconds, {file: set(lines) for file, lines in ran.items()})
        for name, (seconds, ran) in data["tests"].items()
    }
    imported = {file: set(lines) for file, lines in data["imported"].items()}
    return Coverage(tests, imported, data["modules"], data["failed"])


def _file_of(test: str) -> str:
    return test.partition("::")[0]


@dataclass
class _TracedRun:
    """Runs test files in this process, and writes which lines of some files each test runs."""

    root: Path
    source: Path
    names: dict[str, str]
    tests: list[str]
    out: Path

    def __call__(self) -> None:
        tracer = _LineTracer(self.names)
        _prepare(self.root, self.source)
        tracer.start()
        _run_pytest([*self.tests, "--continue-on-collection-errors"], tracer)
        sys.settrace(None)
        tests = {
            name: (tracer.seconds[name], {file: sorted(lines) for file, lines in ran.items()})
            for name, ran in tracer.lines.items()
            if name not in tracer.failed
        }
        result = {
            "tests": tests,
            "imported": {file: sorted(lines) for file, lines in tracer.imported.items()},
            "modules": [name for name in sys.modules if name.partition(".")[0] in PRELOADED],
            "failed": sorted(tracer.failed),
        }
        self.out.write_text(json.dumps(result))


class _LineTracer:
    """A plugin of pytest that notes the lines of some files that each test runs."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self.imported: Lines = {}
        self.lines: dict[str, Lines] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self._current = self.imported

    def start(self) -> None:
        """Trace this thread, and those that are started from now on."""
        sys.settrace(self._trace_call)
        threading.settrace(self._trace_call)

    def _trace_call(self, frame: FrameType, *_: object) -> Callable[..., Any] | None:
        name = self.names.get(frame.f_code.co_filename)
        if name is None:
            return None

        def trace_line(frame: FrameType, *_: object) -> Callable[..., Any]:
            self._current.setdefault(name, set()).add(frame.f_lineno)
            return trace_line

        return trace_line

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note lines for this test from here on."""
        self._current = self.lines.setdefault(nodeid, {})
        self.seconds[nodeid] = time.perf_counter()
        sys.settrace(self._trace_call)  # a test may have ended it

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note whether the test passed."""
        if not report.passed:
            self.failed.add(report.nodeid)  # skipped tests show nothing either

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note how long the test took."""
        self.seconds[nodeid] = time.perf_counter() - self.seconds[nodeid]
        self._current = {}

    def pytest_collectreport(self, report: Any) -> None:
        """Note files that cannot be imported."""
        if report.failed:
            self.failed.add(report.nodeid)


class _SelectedTests:
    """A plugin of pytest that runs some tests alone, in a given order."""

    def __init__(self, names: list[str]) -> None:
        self.order = {name: index for index, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the tests that were named."""
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])


@dataclass
class Worker:
    """Runs the tests of one mutant after the other.

    Attributes:
        root: The folder of the project, where the tests run.
        source: The folder of the package.
        mutants: All mutants.
        modules: Modules to import before the first mutant.
        todo: A queue of (number of a mutant, its tests with their seconds), then None.
        done: A queue of (number of a mutant, outcome, seconds).
    """

    root: Path
    source: Path
    mutants: list[Mutant]
    modules: list[str]
    todo: Any
    done: Any

    def run(self, folder: Path) -> None:
        """Copy the package to this folder, and run mutants until there are no more."""
        shutil.copytree(self.source, folder, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder, quiet=2)
        _prepare(self.root, folder)
        for name in self.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        while (item := self.todo.get()) is not None:
            number, tests = item
            start = time.perf_counter()
            outcome = self._run_mutant(folder, self.mutants[number], tests)
            self.done.put((number, outcome, time.perf_counter() - start))

    def _run_mutant(self, folder: Path, mutant: Mutant, tests: dict[str, float]) -> str:
        if not tests:
            return "not reached"
        file = folder / mutant.file
        with _changed(file, mutant.source):
            child = os.fork()
            if child == 0:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
                selected = _SelectedTests(list(tests))
                os._exit(_run_pytest(["-x", *dict.fromkeys(map(_file_of, tests))], selected))
            # The seconds were taken with every line traced; imports come on top.
            return wait_for_tests(child, 60 + 3 * sum(tests.values()))


def wait_for_tests(child: int, seconds: float) -> str:
    """Wait for a run of the tests, so many seconds at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return "survived" if code in (PASSED, NOTHING_RAN) else "killed"
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


@contextlib.contextmanager
def _changed(file: Path, source: str) -> Iterator[None]:
    """Give a file another source for a while; Python must not find what it compiled before."""
    cached = Path(cache_from_source(str(file)))
    plain, compiled = file.read_bytes(), cached.read_bytes()
    times = file.stat()
    file.write_text(source)
    cached.unlink()
    try:
        yield
    finally:
        file.write_bytes(plain)
        cached.write_bytes(compiled)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _prepare(root: Path, source: Path) -> None:
    """Let this process and those it starts import the package from this folder."""
    os.chdir(root)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(source), str(root)]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), before]))
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")


def _run_pytest(arguments: list[str], plugin: object) -> int:
    """Run pytest in this process, without a word; its exit status."""
    import pytest

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[plugin]))
