"""Install the built wheel in fresh environments, and use it there, away from the checkout.

Run it with `make cleanroom`. For each supported Python that is at hand: the wheel of `dist/` with
the core dependencies alone and the commands of the demo in an empty folder; then, with the extras
that the core tests compare with, these tests, which come from the sdist without its `src`. One line
for each Python at the end; the exit status is 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from archives import check_sums
from cpu_torch import install_torch
from matrix import EXTRAS, TESTS, run_tests

ROOT = Path(__file__).parents[1]
MORE_TESTS = tuple(f"tests/{name}" for name in "cli demo explanation pipeline render".split())
DEMO = (
    ("explain", "cat.jpg", "--top", "2"),
    ("explain", "A superb film, deeply moving.", "An unwatchable mess."),
    ("generate", "--tokens", "8", "Once upon a time there was a dog named Max."),
)
LOOK = """
import importlib.util, json, sys, torch, whence
print(json.dumps({
    "python": sys.version.split()[0], "torch": torch.__version__, "version": whence.__version__,
    "file": whence.__file__, "path": sys.path, "modules": [
        module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)],
    "extras": [name for name in %r if importlib.util.find_spec(name)]}))
"""


def find_pythons(supported: list[str]) -> dict[str, Path]:
    """Find an interpreter for each of these versions (3.11, …), among those of pyenv and PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    code = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    found: dict[str, Path] = {}
    for version in supported:
        candidates = sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)
        if path := shutil.which(f"python{version}"):
            candidates.append(Path(path))
        for candidate in candidates:
            done = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip() == version:
                found[version] = candidate
                break
    return found


def list_supported(pyproject: str) -> list[str]:
    """List the versions of Python that the classifiers name."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    classifiers = tomllib.loads(pyproject)["project"]["classifiers"]
    return [match[1] for one in classifiers if (match := pattern.fullmatch(one))]


class CleanRoomError(Exception):
    """A step that went wrong, in a sentence."""


class CleanRoom:
    """A fresh environment and an empty folder, with nothing of the checkout on the path."""

    def __init__(self, folder: Path, interpreter: Path):
        self.folder = folder
        self.home = folder / "elsewhere"
        self.home.mkdir(parents=True)
        self.python = folder / "environment" / "bin" / "python"
        left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "WHENCE_DATA")
        self.variables = {
            **{name: value for name, value in os.environ.items() if name not in left_out},
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONNOUSERSITE": "1",
        }
        self.run(interpreter, "-m", "venv", folder / "environment")

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """Run a command in the empty folder; what it printed."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd or self.home,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            print(done.stdout[-4000:], flush=True)
            raise CleanRoomError(
                f"`{' '.join(map(str, command))[:120]}` exits with {done.returncode}"
            )
        return done.stdout

    def install(self, wheel: Path, constraints: Path) -> None:
        """Install the wheel with its core dependencies."""
        pins = dict(re.findall(r"^([\w.-]+)==(\S+)", constraints.read_text(), re.MULTILINE))
        install_torch(self.python, pins["torch"])
        pip = (self.python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
        self.run(*pip, wheel)
        self.run(self.python, "-m", "pip", "check")

    def check_import(self, version: str) -> dict[str, str]:
        """Check that the installed package is imported, from site-packages, without extras."""
        extras = ["captum", "gradio", "h5py", "matplotlib", "pyarrow", "ray", "scipy", "sklearn"]
        printed = self.run(self.python, "-c", LOOK % extras)
        seen = json.loads(printed.splitlines()[-1])
        inside = str(self.folder / "environment")
        if not seen["file"].startswith(inside) or "site-packages" not in seen["file"]:
            raise CleanRoomError(f"whence is imported from {seen['file']}")
        stray = [path for path in (*seen["path"], *seen["modules"]) if path.startswith(str(ROOT))]
        if stray and not str(self.folder).startswith(str(ROOT)):
            raise CleanRoomError(f"the checkout is on the path: {stray[0]}")
        if seen["version"] != version:
            raise CleanRoomError(f"whence {seen['version']} is imported, not {version}")
        if seen["extras"]:
            raise CleanRoomError(f"the core has brought {', '.join(seen['extras'])}")
        return seen

    def run_demo(self, photo: Path) -> list[str]:
        """Run the commands of the demo; the names of the files that they wrote."""
        shutil.copyfile(photo, self.home / "cat.jpg")
        whence = self.python.parent / "whence"
        written: set[str] = set()
        for command in DEMO:
            self.run(whence, *command, "--out", "out", "--force")
            files = {file.name for file in (self.home / "out").iterdir() if file.stat().st_size}
            if not files - written:
                raise CleanRoomError(f"`whence {command[0]}` wrote nothing")
            written |= files
        if "cat.png" not in written:
            raise CleanRoomError(f"the demo wrote {sorted(written)} and no cat.png")
        return sorted(written)

    def run_tests(self, wheel: Path, sources: Path, tests: list[str], jobs: int) -> str:
        """Run tests against the installed package; pytest's last line."""
        constraints = sources / "constraints.txt"
        pip = (self.python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
        self.run(*pip, "--no-deps", "torchvision")  # timm imports it; it would ask for CUDA
        self.run(*pip, "pytest", "pytest-xdist", f"{wheel}[{','.join(EXTRAS)}]")
        where = self.run(
            self.python, "-c", "import whence; print(whence.__file__)", cwd=sources
        ).strip()
        if not where.startswith(str(self.folder / "environment")):
            raise CleanRoomError(f"the tests would import {where}")
        status, last = run_tests(self.python, tests, jobs, sources, self.variables)
        if status:
            raise CleanRoomError(f"tests: {last}")
        return last


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist without the package itself; its folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (sources,) = folder.iterdir()
    (sources / "src" / "whence" / "demo" / "cat.jpg").rename(sources / "cat.jpg")
    shutil.rmtree(sources / "src")
    return sources


def visit(room: CleanRoom, wheel: Path, sources: Path, tests: list[str], jobs: int) -> str:
    """Do all steps in a room; what came out, in a line."""
    room.install(wheel, sources / "constraints.txt")
    seen = room.check_import(wheel.name.split("-")[1])
    written = room.run_demo(sources / "cat.jpg")
    print(f"{seen['python']}: the demo wrote {', '.join(written)}", flush=True)
    last = room.run_tests(wheel, sources, tests, jobs)
    return f"torch {seen['torch']}, demo of {len(DEMO)} commands, tests: {last}"


def main() -> int:
    """Visit a clean room for each Python; 1 if one fails."""
    supported = list_supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--only", choices=supported, nargs="+", help="these versions of Python")
    parser.add_argument("--tests", nargs="+", default=[*TESTS, *MORE_TESTS], metavar="PATH")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    arguments = parser.parse_args()
    check_sums(arguments.dist)
    (wheel,), (sdist,) = arguments.dist.glob("*.whl"), arguments.dist.glob("*.tar.gz")
    pythons = find_pythons(arguments.only or supported)
    lines, failed = [], not pythons
    for version, interpreter in pythons.items():
        with tempfile.TemporaryDirectory() as folder:
            sources = unpack(sdist, Path(folder, "sdist"))
            print(f"Python {version}: {interpreter}", flush=True)
            try:
                room = CleanRoom(Path(folder, "room"), interpreter)
                outcome = visit(room, wheel, sources, arguments.tests, arguments.jobs)
                lines.append(f"{version} passed: {outcome}")
            except CleanRoomError as error:
                failed = True
                lines.append(f"{version} FAILED: {error}")
    for version in supported:
        if version not in pythons and version in (arguments.only or supported):
            lines.append(f"{version} was not tried: no such Python is at hand")
    print(f"\n{wheel.name} in clean rooms:", *lines, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
