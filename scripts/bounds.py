"""Run the tests with the lowest release of everything that pyproject.toml allows.

Run it with `make bounds`. uv finds the lowest releases that go together. Ray and Gradio need newer
releases of what others use than these do, so that their extras have environments of their own; one
holds all other extras. The exit status is 1 if a test fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cpu_torch import QUIET, install_torch, run
from matrix import ROOT, run_tests

FOR_CONTRIBUTORS = {"dev", "docs"}  # no extras for users
TOOLS = ("datasets", "httpx", "pytest", "pytest-xdist")  # of the extra `dev`, what the tests need
APART = {  # extras that raise the lowest releases of others, and their tests
    "ray": ("tests/distributed",),
    "web": ("tests/web", "tests/cli/test_serve.py"),
}
NOT_HERE = (  # what no release of a dependency changes, takes long, or needs later models
    *("tests/docs", "tests/families", "tests/fuzz", "tests/web", "tests/engine/compiled"),
    *(f"tests/test_{name}.py" for name in "audit dist examples mutate walk workflows".split()),
)
_CUDA = re.compile(r"(?:nvidia|cuda|triton)\b")


@dataclass(frozen=True)
class Group:
    """Extras that are installed together, and their tests."""

    name: str
    extras: tuple[str, ...]
    tests: tuple[str, ...]


def list_groups(pyproject: str) -> list[Group]:
    """List the groups: the core with most extras, and those apart."""
    extras = set(tomllib.loads(pyproject)["project"]["optional-dependencies"])
    together = tuple(sorted(extras - FOR_CONTRIBUTORS - APART.keys()))
    core = Group("core", together, ("tests", *(f"--ignore={path}" for path in NOT_HERE)))
    return [core, *(Group(name, (name,), tests) for name, tests in APART.items())]


def find_lowest(group: Group) -> dict[str, str]:
    """Find the lowest releases for a group that go together: release by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    development = project["optional-dependencies"]["dev"]
    tools = [one for one in development if re.match(r"[\w-]+", one)[0] in TOOLS]
    version = "{}.{}".format(*sys.version_info)
    extras = [part for extra in group.extras for part in ("--extra", extra)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate"),
            *("--no-header", "--resolution", "lowest-direct", "--python-version", version),
            *(*extras, str(ROOT / "pyproject.toml"), "-"),
        ],
        input="\n".join(tools),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"No lowest releases go together:\n{done.stderr}")
    pins = dict(line.split("==") for line in done.stdout.splitlines())
    return {name: release for name, release in pins.items() if not _CUDA.match(name)}


def make_environment(group: Group, pins: dict[str, str]) -> Path:
    """Make the environment of a group; its Python."""
    folder = ROOT / ".venv" / f"bounds-{group.name}"
    python = folder / "bin" / "python"
    text = "".join(f"{name}=={release}\n" for name, release in pins.items() if name != "torch")
    listed = folder / "requirements.txt"
    if listed.exists() and listed.read_text() == text:
        return python
    run(sys.executable, "-m", "venv", "--clear", folder)
    install_torch(python, pins["torch"])
    pip = (python, "-m", "pip", "install", *QUIET, "--no-deps")
    (folder / "pins.txt").write_text(text)
    run(*pip, "--requirement", folder / "pins.txt", "--editable", ROOT)
    (folder / "pins.txt").rename(listed)
    return python


def list_direct(group: Group, pins: dict[str, str]) -> str:
    """List the releases of what the group's extras and the core ask for themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"]]
    for extra in group.extras:
        asked += extras[extra]
    for inner in re.findall(r"whence\[([\w,]+)\]", " ".join(asked)):
        asked += [one for extra in inner.split(",") for one in extras[extra]]
    names = sorted({re.match(r"[\w-]+", one)[0].lower() for one in asked} - {"whence"})
    return ", ".join(f"{name} {pins[name]}" for name in names)


def main() -> int:
    """Run the groups; 1 if one fails."""
    groups = list_groups((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[one.name for one in groups])
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="instead of all of the group")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    parser.add_argument("--install-only", action="store_true", help="make the environments")
    arguments = parser.parse_args()
    rows = []
    for group in groups:
        if arguments.only not in (None, group.name):
            continue
        pins = find_lowest(group)
        direct = list_direct(group, pins)
        print(f"{group.name}: {direct}", flush=True)
        python = make_environment(group, pins)
        if not arguments.install_only:
            tests = arguments.tests or list(group.tests)
            rows.append((direct, *run_tests(python, tests, arguments.jobs)))
    print(f"\nLowest releases on {date.today()}, Python {sys.version.split()[0]}, on the CPU:")
    for direct, status, last in rows:
        print(f"- {'failed' if status else 'passed'}: {last} ({direct})")
    return int(any(status for _, status, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
