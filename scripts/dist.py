"""Build the wheel and the sdist twice; keep them if the two builds are equal, bit for bit.

Run it with `make dist`. The builds differ in folder, permissions, time zone and the order of
Python's sets. Beside them in `dist/`: the software bill of materials and SHA256SUMS.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from archives import (
    check_sdist,
    check_sums,
    check_wheel,
    find_differences,
    list_sources,
    write_sums,
)
from sbom import write_sbom

ROOT = Path(__file__).parents[1]
NO_COMMIT = 1_577_836_800  # 1 January 2020, where nothing tells the time of the release
SURROUNDINGS = (  # folder, umask and variables of the two builds; nothing of this may show
    ("first", 0o022, {"TZ": "UTC", "PYTHONHASHSEED": "0"}),
    ("second/elsewhere", 0o077, {"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "1"}),
)


def find_epoch(root: Path) -> int:
    """Find the time that the files of a build carry, in seconds since 1970.

    It is SOURCE_DATE_EPOCH if that is set, else the time of the last commit. An unpacked sdist has
    no commit, but PKG-INFO has kept the time.
    """
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        if not given.isdecimal():
            raise SystemExit(f"SOURCE_DATE_EPOCH is '{given}', and not a number of seconds.")
        return int(given)
    if is_checkout(root):
        return int(_run("git", "-C", root, "log", "-1", "--format=%ct"))
    if (root / "PKG-INFO").exists():
        return int((root / "PKG-INFO").stat().st_mtime)
    return NO_COMMIT


def is_checkout(root: Path) -> bool:
    """Whether this folder is the top of a git checkout."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return False
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True)
    return done.returncode == 0


def copy_sources(root: Path, folder: Path) -> list[str]:
    """Copy what a release is made from into a folder; the names of the files."""
    names = list_sources(root, tracked=is_checkout(root))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, folder / name)
    return names


def build(sources: Path, out: Path, umask: int, variables: dict[str, str]) -> None:
    """Build the sdist, and from it the wheel."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)],
        env={**os.environ, **variables},
        umask=umask,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"The build failed:\n{done.stdout}{done.stderr}")


def build_twice(root: Path, folder: Path, epoch: int) -> Path:
    """Build in two folders and compare; the folder of the first build."""
    outs = []
    for name, umask, variables in SURROUNDINGS:
        sources, out = folder / name / "sources", folder / name / "dist"
        names = copy_sources(root, sources)
        build(sources, out, umask, {**variables, "SOURCE_DATE_EPOCH": str(epoch)})
        check_wheel(_find(out, "*.whl"), names)
        check_sdist(_find(out, "*.tar.gz"), names)
        outs.append(out)
    if differences := find_differences(*outs):
        raise SystemExit(f"The two builds differ: {'; '.join(differences)}.")
    return outs[0]


def main() -> None:
    """Build, check, and replace what lies in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--tree", type=Path, help="Python of an environment with the dependencies")
    arguments = parser.parse_args()
    epoch = find_epoch(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        out = build_twice(ROOT, Path(folder), epoch)
        wheel, sdist = _find(out, "*.whl"), _find(out, "*.tar.gz")
        _run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        if arguments.tree:
            write_sbom(arguments.tree, ROOT / "pyproject.toml", wheel, epoch)
        write_sums(out)
        check_sums(out)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for old in [*arguments.out.glob("whence-*"), arguments.out / "SHA256SUMS"]:
            old.unlink(missing_ok=True)
        for file in out.iterdir():
            shutil.move(file, arguments.out / file.name)
    print(f"Two builds are equal, bit for bit (SOURCE_DATE_EPOCH={epoch}). In {arguments.out}:")
    print((arguments.out / "SHA256SUMS").read_text(), end="")
    if is_checkout(ROOT) and _run("git", "-C", ROOT, "status", "--porcelain"):
        print("The tree has changes that are not committed: this is no release.")


def _find(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
