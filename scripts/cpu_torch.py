"""Install a release of torch for the CPU alone, also where the index has only its CUDA build.

A CUDA build of torch asks for gigabytes of CUDA's libraries. Without a GPU none of their functions
is ever called with success, so that here each library is replaced by an empty one: it has the
names that torch looks up, and every function returns the error "no device". The build then behaves
as on any machine without a GPU. It needs gcc and binutils.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice
_CUDA_LIBRARY = re.compile(r"\[(lib(?:cu|nv|nccl)\S*)\]")
_CUDA_FUNCTION = re.compile(r"_*(?:cu|nv|nccl)\w+")
_GIVES_TEXT = re.compile(r"(?:Error|Status)(?:String|Name)$|^ncclGetLastError$")
_CUDA_PACKAGE = re.compile(r"Requires-Dist: (?:nvidia|cuda|triton)")


def install_torch(python: Path, version: str) -> None:
    """Install a release of torch into the environment of this Python, without CUDA's packages."""
    run(python, "-m", "pip", "install", *QUIET, "--no-deps", f"torch=={version}")
    packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    for metadata in packages.glob("torch-*.dist-info/METADATA"):
        lines = metadata.read_text().splitlines(keepends=True)
        metadata.write_text("".join(line for line in lines if not _CUDA_PACKAGE.match(line)))
    replace_cuda_libraries(packages / "torch" / "lib")


QUIET = ("--quiet", "--no-cache-dir", "--disable-pip-version-check")


def replace_cuda_libraries(folder: Path) -> list[str]:
    """Write an empty library for each of CUDA's that those in this folder need; their names."""
    names: set[str] = set()
    functions: dict[str, set[str]] = {}  # by version; "" where a name has none
    versions: dict[str, set[str]] = {}  # by library
    for library in folder.glob("*.so*"):
        if library.name.startswith("libcaffe2_nvrtc"):
            continue  # loaded when a kernel is compiled
        names.update(_CUDA_LIBRARY.findall(run("readelf", "--wide", "-d", library)))
        _add_versions(versions, run("readelf", "--wide", "-V", library))
        for line in run("nm", "-D", "--undefined-only", library).splitlines():
            function, _, version = line.split()[-1].partition("@")
            if _CUDA_FUNCTION.fullmatch(function):
                functions.setdefault(version.lstrip("@"), set()).add(function)
    names = {name for name in names if not (folder / name).exists()}
    for name in names:
        own = {version: functions.get(version, set()) for version in versions.get(name, {""})}
        _write_library(folder / name, own)
    return sorted(names)


def run(*command: str | Path) -> str:
    """Run a command; what it printed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _add_versions(versions: dict[str, set[str]], listing: str) -> None:
    """Add the versions of names that are needed of each library, as readelf lists them."""
    library = ""
    for line in listing.splitlines():
        if file := re.search(r"File: (\S+)", line):
            library = file[1]
        elif (name := re.search(r"Name: (\S+)", line)) and library:
            versions.setdefault(library, set()).add(name[1])


def _write_function(name: str) -> str:
    if _GIVES_TEXT.search(name):
        return f'const char *{name}() {{ return "no CUDA device"; }}\n'
    return f"int {name}() {{ return {NO_DEVICE}; }}\n"


def _write_library(path: Path, functions: dict[str, set[str]]) -> None:
    """Write a library whose functions, listed by version, return an error."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "empty.c"), Path(folder, "versions")
        every = sorted(set().union(*functions.values()))
        source.write_text("".join(map(_write_function, every)))
        command: list[str | Path] = ["gcc", "-w", "-shared", "-fPIC", "-o", path, source]
        if "" not in functions:
            script.write_text(
                "".join(
                    f"{version} {{ {'global: ' if names else ''}"
                    f"{' '.join(f'{name};' for name in sorted(names))} }};\n"
                    for version, names in functions.items()
                )
            )
            command.append(f"-Wl,--version-script={script}")
        run(*command, f"-Wl,-soname,{path.name}")
