"""Find out which faults the tests notice: mutation testing without any dependency but pytest.

Each file is given one small fault at a time (`mutants.py`); the tests that run the faulty line must
fail. Run it with `make mutants`, or for example

    python scripts/mutate.py --files src/whence/targets --tests tests/targets --jobs 4

The tests run once without a fault, to see which of them run which line and how long they take. Then
each worker holds a copy of the package and all libraries in memory, and forks for each mutant: the
fork imports the faulty package and runs the tests that reach the line, short files first, until one
fails. A mutant that takes too long is killed. The tests that fail without a fault are left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from queue import Empty
from typing import Any

from mutants import Mutant, make_mutants
from mutation_runs import Coverage, Worker, read_coverage

ROOT = Path(__file__).parents[1]
FILES = ("src/whence/tracing/graph*", "src/whence/layout", "src/whence/targets")
KILLED = ("killed", "timeout")
TESTS = ("tests/targets", "tests/layout", "tests/tracing", "tests/methods", "tests/test_models.py")


def find_files(root: Path, patterns: Iterable[str], suffix: str = "*.py") -> list[Path]:
    """Find the Python files that names, folders and patterns in a folder stand for."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = sorted(root.glob(pattern))
        if not matches:
            raise SystemExit(f"There is no file {pattern} in {root}.")
        for match in matches:
            listed = sorted(match.rglob(suffix)) if match.is_dir() else [match]
            found.update(dict.fromkeys(listed))
    return list(found)


def select_mutants(mutants: list[Mutant], limit: int | None, seed: int, shard: str) -> list[Mutant]:
    """Select a random sample of mutants, and of these one of n shards, "i/n"."""
    chosen = list(range(len(mutants)))
    if limit is not None and limit < len(mutants):
        chosen = sorted(random.Random(seed).sample(chosen, limit))
    index, count = map(int, shard.split("/"))
    if not 1 <= index <= count:
        raise SystemExit(f"--shard is 1/{count} to {count}/{count}, not {shard}.")
    return [mutants[i] for i in chosen[index - 1 :: count]]


def keep_survivors(mutants: list[Mutant], rows: list[dict[str, Any]]) -> list[Mutant]:
    """Keep the mutants that survived an earlier run."""
    alive = {
        (row["file"], row["before"], row["after"]) for row in rows if row["outcome"] not in KILLED
    }
    return [one for one in mutants if (one.file, one.before, one.after) in alive]


def run_mutants(
    root: Path, source: Path, mutants: list[Mutant], coverage: Coverage, jobs: int, most: int | None
) -> list[dict[str, Any]]:
    """Run the tests for each mutant, in parallel; one row each, and a line for each survivor."""
    context = multiprocessing.get_context("fork")
    todo, done = context.Queue(), context.Queue()
    for number, mutant in enumerate(mutants):
        todo.put((number, coverage.select_tests(mutant, most)))
    for _ in range(jobs):
        todo.put(None)
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(root, source, mutants, coverage.modules, todo, done)
        processes = [
            context.Process(target=worker.run, args=(Path(folder, str(i)),)) for i in range(jobs)
        ]
        for process in processes:
            process.start()
        rows: dict[int, dict[str, Any]] = {}
        while len(rows) < len(mutants):
            try:
                number, outcome, seconds = done.get(timeout=5)
            except Empty:
                if not any(process.is_alive() for process in processes):
                    raise SystemExit("All workers died.") from None
                continue
            mutant = mutants[number]
            rows[number] = {
                "file": mutant.file,
                "line": mutant.first,
                "kind": mutant.kind,
                "before": mutant.before,
                "after": mutant.after,
                "outcome": outcome,
                "seconds": round(seconds, 2),
            }
            if outcome not in KILLED:
                print(describe(rows[number]), flush=True)
            elif len(rows) % 50 == 0:
                print(f"  {len(rows)} of {len(mutants)}", flush=True)
        for process in processes:
            process.join()
    return [rows[number] for number in sorted(rows)]


def describe(row: dict[str, Any]) -> str:
    """Describe one mutant: where, what, and the lines that differ."""
    head = f"{row['outcome']}: {row['file']}:{row['line']} ({row['kind']})"
    return f"{head}\n  - {row['before']}\n  + {row['after']}"


def summarize(rows: list[dict[str, Any]]) -> str:
    """Count what was killed and what survived."""
    outcomes = [row["outcome"] for row in rows]
    killed = outcomes.count("killed") + outcomes.count("timeout")
    share = 100 * killed / max(1, len(rows))
    return (
        f"{len(rows)} mutants: {killed} killed ({outcomes.count('timeout')} by time), "
        f"{len(rows) - killed} survived ({outcomes.count('not reached')} on lines that no test "
        f"runs). Killed: {share:.1f} %."
    )


def main(arguments: list[str] | None = None) -> int:
    """Make mutants, run the tests, and print what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--files", nargs="+", default=FILES, help="files, folders or patterns to mutate")
    add("--tests", nargs="+", default=TESTS, help="test files, folders or patterns")
    add("--root", type=Path, default=ROOT, help="the folder of the project")
    add("--source", default="src", help="the folder that is put on the path")
    add("--jobs", type=int, default=os.cpu_count() or 1)
    add("--limit", type=int, help="a random sample of so many mutants")
    add("--seed", type=int, default=0, help="of the sample")
    add("--shard", default="1/1", help="i/n: the i-th of n parts of the mutants")
    add("--again", type=Path, help="only those that survived in the file of an earlier --out")
    add("--most", type=int, help="for each mutant, at most so many tests")
    add("--coverage", type=Path, help="file of which test runs which line: read, or written")
    add("--out", type=Path, help="write the outcome of each mutant as JSON")
    options = parser.parse_args(arguments)

    root = options.root.resolve()
    source = (root / options.source).resolve()
    files = find_files(root, options.files)
    mutants = []
    for file in files:
        name = file.relative_to(source).as_posix()
        mutants += make_mutants(name, file.read_text())
    if options.again:
        mutants = keep_survivors(mutants, json.loads(options.again.read_text()))
    mutants = select_mutants(mutants, options.limit, options.seed, options.shard)
    print(f"{len(mutants)} mutants of {len(files)} files", flush=True)
    tests = find_files(root, options.tests, "test_*.py")
    coverage = read_coverage(root, source, files, tests, options.jobs, options.coverage)
    print(coverage.describe(), flush=True)
    rows = run_mutants(root, source, mutants, coverage, options.jobs, options.most)
    print(summarize(rows))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
