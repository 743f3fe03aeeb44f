"""Look at everything that an installation of whence brings: known advisories, and licences.

Run it with `make audit`; `make audit ADVISORIES=folder` looks advisories up in a database on disk.
It writes to out/audit. The exit status is 1 if there is an advisory or a licence that does not go
with Apache-2.0, and 3 if nothing of that was found but something could not be checked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from advisories import Advisories, NotCheckedError, look_up, look_up_stored
from installed import Collected, Packages, collect, read_environment
from licences import find_licence, find_problem

# Advisories that do not concern whence, each with the reason.
ACCEPTED: dict[str, str] = {}
FOUND, NOT_CHECKED = 1, 3


def list_owners(collected: Mapping[str, Collected]) -> dict[str, list[str]]:
    """List the extras that bring each package."""
    names = sorted(set().union(*(one.names for one in collected.values())))
    return {name: [e for e, one in collected.items() if name in one.names] for name in names}


def list_pins(packages: Packages, names: Mapping[str, object]) -> dict[str, str]:
    """List the release of each package, without what a builder added, such as +cpu."""
    return {name: packages[name].version.partition("+")[0] for name in names}


def write_licences(packages: Packages, owners: Mapping[str, list[str]], out: Path) -> list[str]:
    """Write a table of licences; a sentence for each that does not go with Apache-2.0."""
    lines = ["# Licences of what is installed", "", "| package | version | licence | brought by |"]
    lines.append("| --- | --- | --- | --- |")
    problems = []
    for name, brought_by in owners.items():
        licence = find_licence(packages[name])
        if problem := find_problem(name, licence):
            problems.append(f"{name} ({', '.join(brought_by)}) {problem}.")
        version, shown = packages[name].version, licence or "not named"
        lines.append(f"| {name} | {version} | {shown} | {', '.join(brought_by)} |")
    (out / "licences.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return problems


def list_advisories(advisories: Advisories, owners: Mapping[str, list[str]]) -> list[str]:
    """A sentence for each advisory that was found and is not accepted."""
    sentences = []
    for name, found in sorted(advisories.found.items()):
        for identifier, fixes in found.items():
            if identifier not in ACCEPTED:
                fix = f"fixed in {', '.join(fixes)}" if fixes else "no release fixes it yet"
                sentences.append(f"{name} ({', '.join(owners[name])}) has {identifier}: {fix}.")
    return sentences


def main() -> None:
    """Audit an environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="Python of the environment")
    parser.add_argument("--out", type=Path, default=Path("out/audit"), help="default: out/audit")
    parser.add_argument("--advisories", type=Path, help="a database on disk: folder or .zip")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    packages = read_environment(arguments.python)
    collected = collect(packages, "whence")
    owners = list_owners(collected)
    pins = list_pins(packages, owners)
    text = "".join(f"{name}=={version}\n" for name, version in pins.items())
    (arguments.out / "packages.txt").write_text(text, encoding="utf-8")

    counts = ", ".join(f"{extra} {len(one.names)}" for extra, one in collected.items())
    print(f"{len(pins)} packages; of extras, those beside the core: {counts}.")
    wrong = write_licences(packages, owners, arguments.out)
    print(f"Licences: {len(wrong)} that do not go with Apache-2.0.")
    print(*(f"  {sentence}" for sentence in wrong), sep="\n", end="\n" if wrong else "")

    unchecked = [
        f"  The extra {extra} is not whole: {', '.join(sorted(one.missing))} not installed."
        for extra, one in collected.items()
        if one.missing
    ]
    try:
        if arguments.advisories:
            advisories = look_up_stored(pins, arguments.advisories, datetime.now(UTC))
        else:
            advisories = look_up(pins)
        record = {"checked": True, **asdict(advisories)}
        known = list_advisories(advisories, owners)
        print(f"Advisories ({advisories.source}): {len(known)}.")
        print(*(f"  {sentence}" for sentence in known), sep="\n", end="\n" if known else "")
        wrong += known
    except NotCheckedError as error:
        record = {"checked": False, "reason": str(error)}
        unchecked.append(f"  Advisories were NOT checked: {error}.")
    (arguments.out / "advisories.json").write_text(json.dumps(record, indent=1) + "\n")
    if unchecked:
        print("NOT CHECKED:", *unchecked, sep="\n")
    print(f"Lists are in {arguments.out}.")
    sys.exit(FOUND if wrong else NOT_CHECKED if unchecked else 0)


if __name__ == "__main__":
    main()
