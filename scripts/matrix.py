"""Run the core tests with later releases of torch and transformers; `bounds.py` has the lowest.

Run it with `make matrix`. Each combination gets an environment of its own, `.venv/matrix-*`, and
one line at the end; the exit status is 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cpu_torch import QUIET, install_torch, run

ROOT = Path(__file__).parents[1]
EXTRAS = ("methods", "timm")  # what the core tests compare with
TESTS = (
    *(f"tests/{name}" for name in "tracing rules evidence engine methods layout targets".split()),
    "tests/test_golden.py",
    "tests/test_models.py",
    "--ignore=tests/engine/compiled",
)


@dataclass(frozen=True)
class Combination:
    """Releases to test together, with the newest of everything else."""

    torch: str
    torchvision: str
    transformers: str

    @property
    def name(self) -> str:
        """A short name, also of its environment."""
        return f"{self.torch}-{self.transformers}"


COMBINATIONS = (
    Combination("2.13.0", "0.28.0", "4.57.6"),
    Combination("2.13.0", "0.28.0", "5.22.2"),
    Combination("2.15.0", "0.29.2", "5.22.2"),
)


def make_environment(combination: Combination) -> Path:
    """Make the environment of a combination, unless it is there; its Python."""
    folder = ROOT / ".venv" / f"matrix-{combination.name}"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists() and done.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime:
        return python
    run(sys.executable, "-m", "venv", "--clear", folder)
    install_torch(python, combination.torch)
    pip = (python, "-m", "pip", "install", *QUIET)
    run(*pip, "--no-deps", f"torchvision=={combination.torchvision}")
    pinned = [f"torch=={combination.torch}", f"transformers=={combination.transformers}"]
    run(*pip, *pinned, "pytest", "pytest-xdist", "--editable", f"{ROOT}[{','.join(EXTRAS)}]")
    done.touch()
    return python


def run_tests(
    python: Path,
    tests: list[str],
    jobs: int = 1,
    folder: Path = ROOT,
    variables: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Run the tests in a folder with this Python; its exit status and pytest's last line."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *tests]
    if jobs > 1:
        command += ["-n", str(jobs)]
    environment = {**(variables or os.environ), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        last = ""
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip(" =\n") or last
    return process.returncode, last


def make_table(rows: list[tuple[Combination, int, str]]) -> str:
    """Make a table in Markdown of what was run."""
    lines = [
        f"The core tests on {date.today()}, Python {platform.python_version()}, on the CPU:",
        "",
        "| torch | torchvision | transformers | outcome |",
        "| --- | --- | --- | --- |",
    ]
    for one, status, last in rows:
        outcome = f"{'failed' if status else 'passed'}: {re.sub(r' in [0-9].*', '', last)}"
        cells = (one.torch, one.torchvision, one.transformers, outcome)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the combinations; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="for example 2.15.0-5.22.2")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), metavar="PATH")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    parser.add_argument("--install-only", action="store_true", help="make the environments")
    arguments = parser.parse_args()
    names = [one.name for one in COMBINATIONS]
    if unknown := set(arguments.only or ()) - set(names):
        parser.error(f"no combination {', '.join(unknown)}; there are {', '.join(names)}")
    rows = []
    for one in COMBINATIONS:
        if arguments.only and one.name not in arguments.only:
            continue
        print(f"torch {one.torch}, transformers {one.transformers}", flush=True)
        python = make_environment(one)
        if not arguments.install_only:
            rows.append((one, *run_tests(python, arguments.tests, arguments.jobs)))
    print(make_table(rows))
    return int(any(status for _, status, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
