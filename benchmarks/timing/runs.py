"""The file of a run: its figures, and where, when and by which command they were measured."""

import json
import os
import platform
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

import whence
from whence._util.files import write_atomically
from whence.version import __version__

FORMAT = "whence speed 1"


@dataclass
class Run:
    """All that one run measured.

    Attributes:
        run: A random name; figures are compared only if they have the same.
        date: When it began.
        command: What was called.
        machine: Its processor, threads, GPU and load at the beginning.
        versions: Of whence, with its commit, torch, transformers and Python.
        rows: The figures.
    """

    run: str
    date: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    format: str = FORMAT

    @classmethod
    def start(cls) -> "Run":
        """A run that begins now, by the command of this process."""
        return cls(
            run=secrets.token_hex(4),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(["python", *sys.argv]),
            machine=describe_machine(),
            versions=describe_versions(),
        )

    @classmethod
    def load(cls, path: Path) -> "Run":
        """Read the file of a run; ends the program where it is none."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            refuse(f"'{path}' cannot be read: {error}.")
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            refuse(f"'{path}' is no file of a run that benchmarks/speed.py has written.")
        return cls(**content)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())

    def describe(self) -> str:
        """One line for a page: machine, versions, command."""
        machine, versions = self.machine, self.versions
        commit = f" ({versions['commit']})" if versions["commit"] else ""
        gpu = f", {machine['gpu']}" if machine["gpu"] else ""
        return (
            f"Run {self.run} of {self.date[:10]}: {machine['cpu']}, {machine['threads']} "
            f"threads{gpu}; whence {versions['whence']}{commit}, torch {versions['torch']}, "
            f"transformers {versions['transformers']}; `{self.command}`"
        )


def load_one_run(paths: Sequence[Path]) -> Run:
    """Read files of the same run; ends the program, with a reason, where they are of several."""
    first, *others = runs = [Run.load(path) for path in paths]
    for path, other in zip(paths[1:], others, strict=True):
        if other.run != first.run:
            refuse(
                f"'{paths[0]}' is of run {first.run} ({first.date}, {first.machine['cpu']}) and "
                f"'{path}' of run {other.run} ({other.date}, {other.machine['cpu']}). Figures of "
                f"different runs are not compared: a machine is in another state each time (clock, "
                f"temperature, other work). Measure both in one run: python "
                f"benchmarks/before_after.py OTHER-CHECKOUT."
            )
    rows = [row for run in runs for row in run.rows]
    first.rows = [row for n, row in enumerate(rows) if row not in rows[:n]]
    return first


def refuse(sentence: str) -> None:
    """End the program with a sentence."""
    print(f"Error: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def describe_machine() -> dict[str, Any]:
    """What figures depend on."""
    return {
        "cpu": _read_cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
    }


def describe_versions() -> dict[str, Any]:
    """Of what was measured."""
    return {
        "whence": __version__,
        "commit": read_commit(Path(whence.__file__).parent),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def read_commit(folder: Path) -> str | None:
    """The commit that a folder is at, and whether files differ from it; None outside of git."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        commit = ask("rev-parse", "--short", "HEAD")
        changed = ask("status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit} with changes" if changed else commit


def read_commits(checkouts: Mapping[str, Path]) -> str:
    """The commits of several checkouts that a run measures, with their names."""
    return ", ".join(f"{name}: {read_commit(path / 'src')}" for name, path in checkouts.items())


def _read_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
