"""Read what an environment has installed for whence, and for each of its extras."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Packages = Mapping[str, Distribution]
"""What is installed, by canonical names."""


@dataclass
class Collected:
    """What one extra brings.

    Attributes:
        names: The canonical names of its packages.
        missing: Requirements that are not installed.
    """

    names: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


def read_environment(python: Path) -> dict[str, Distribution]:
    """Read the packages of an environment, by its Python; nothing of them is imported."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    found = distributions(path=[done.stdout.strip()])
    return {canonicalize_name(one.metadata["Name"]): one for one in found}


def collect(packages: Packages, project: str) -> dict[str, Collected]:
    """Collect what a project needs: ``core``, and what each of its extras brings beside it."""
    root = packages.get(canonicalize_name(project))
    if root is None:
        raise SystemExit(f"{project} is not installed in that environment.")
    core = collect_extra(packages, project, "")
    every = {"core": core}
    for extra in sorted(root.metadata.get_all("Provides-Extra") or ()):
        one = collect_extra(packages, project, extra)
        every[extra] = Collected(one.names - core.names, one.missing - core.missing)
    return every


def collect_extra(packages: Packages, project: str, extra: str) -> Collected:
    """Walk the requirements of a project with one extra, those of these, and so on."""
    collected, seen = Collected(), set()
    waiting = [(canonicalize_name(project), extra)]
    while waiting:
        name, asked = waiting.pop()
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        for text in packages[name].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": asked}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed not in packages:
                collected.missing.add(needed)
                continue
            collected.names.add(needed)
            waiting += [(needed, ""), *((needed, one) for one in requirement.extras)]
    collected.names.discard(canonicalize_name(project))
    return collected
