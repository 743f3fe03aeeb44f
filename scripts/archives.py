"""What is in a wheel and an sdist, what should be, and SHA256SUMS beside them."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

LEFT_OUT = {".venv", ".git", "build", "dist", "out", "__pycache__"}  # no part of a release
BY_THE_BUILD = {"PKG-INFO", ".gitignore", "pyproject.toml"}  # always in an sdist
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
NEEDED = (  # at least one file of each in the wheel, so that an empty folder is noticed
    "whence/py.typed",
    "whence/demo/*/model.safetensors",
    "whence/demo/*/config.json",
    "whence/demo/SHA256SUMS",
    "whence/demo/cat.jpg",
    "whence/render/templates/*",
    "whence/report/templates/*",
    "whence/benchmark/templates/*",
    "whence/web/templates/*",
    "whence/web/static/*",
)


def list_sources(root: Path, *, tracked: bool) -> list[str]:
    """List the files that a release is made from: those of git, or all of an unpacked sdist."""
    if tracked:
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True
        )
        names = [name for name in done.stdout.split("\0") if name]
        return sorted(name for name in names if (root / name).is_file())
    files = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
    return sorted(file.as_posix() for file in files if not LEFT_OUT & set(file.parts))


def read_include(pyproject: str) -> list[str]:
    """Read which files and folders the sdist includes, from the text of pyproject.toml."""
    include = tomllib.loads(pyproject)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    if loose := [name for name in include if not name.startswith("/")]:
        raise SystemExit(f"'{loose[0]}' would match in every folder: write '/{loose[0]}'.")
    return [name.removeprefix("/") for name in include]


def check_wheel(wheel: Path, sources: list[str]) -> None:
    """Refuse a wheel that has a file too many or too few, or whose RECORD is wrong."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name.split("/")[0] for name in names if ".dist-info/" in name)
        expected = {name.removeprefix("src/") for name in sources if name.startswith("src/whence/")}
        expected |= {f"{metadata}/{name}" for name in METADATA}
        _compare(wheel, names, expected)
        for pattern in NEEDED:
            if not any(Path(name).match(pattern) for name in names):
                raise SystemExit(f"{wheel.name} has no {pattern}.")
        rows = csv.reader(archive.read(f"{metadata}/RECORD").decode().splitlines())
        for name, digest, _ in rows:
            if digest and digest != _record_digest(archive.read(name)):
                raise SystemExit(f"RECORD of {wheel.name} has another hash of {name}.")


def check_sdist(sdist: Path, sources: list[str]) -> None:
    """Refuse an sdist that does not hold exactly what pyproject.toml includes."""
    with tarfile.open(sdist) as archive:
        names = {one.name.partition("/")[2]: one for one in archive.getmembers() if one.isfile()}
        opened = archive.extractfile(names["pyproject.toml"])
        assert opened is not None
        include = read_include(opened.read().decode())
    expected = {
        name for name in sources if any(f"{name}/".startswith(f"{one}/") for one in include)
    }
    _compare(sdist, set(names), expected | BY_THE_BUILD)


def find_differences(first: Path, second: Path) -> list[str]:
    """Find the files of two folders that are not equal, each in a few words."""
    both = {file.name for folder in (first, second) for file in folder.iterdir()}
    hashes = {
        name: [hash_file(folder / name) for folder in (first, second)] for name in sorted(both)
    }
    return [
        f"{name} is {one[:12]}… and {other[:12]}…"
        for name, (one, other) in hashes.items()
        if one != other
    ]


def hash_file(file: Path) -> str:
    """Compute the SHA-256 of a file; `missing` where there is none."""
    if not file.exists():
        return "missing"
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS of a folder's files, as `sha256sum --check` reads it."""
    files = sorted(file for file in folder.iterdir() if file.name != "SHA256SUMS")
    lines = [f"{hash_file(file)}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")


def check_sums(folder: Path) -> list[str]:
    """Refuse a folder whose files are not those of its SHA256SUMS; the names that it lists."""
    if not (folder / "SHA256SUMS").is_file():
        raise SystemExit(f"There is no SHA256SUMS in {folder}: `make dist` builds a release.")
    names = []
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if hash_file(folder / name) != digest:
            raise SystemExit(f"{name} is not the file that SHA256SUMS lists.")
        names.append(name)
    return names


def _compare(archive: Path, names: set[str], expected: set[str]) -> None:
    """Refuse an archive that has not exactly the expected names."""
    if extra := sorted(names - expected):
        raise SystemExit(f"{archive.name} has stray files: {', '.join(extra[:10])}.")
    if missing := sorted(expected - names):
        raise SystemExit(f"{archive.name} lacks {', '.join(missing[:10])}.")


def _record_digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + digest.rstrip(b"=").decode()
