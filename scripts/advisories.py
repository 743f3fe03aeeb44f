"""Look up known advisories of packages: by pip-audit, or in a database on disk in OSV's format.

An answer counts only if it also names the advisories of an old release that everybody knows: a
service that answers "nothing known" to everything has checked nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

KNOWN = ("django", "2.2.0")  # has dozens of advisories
SERVICES = ("pypi", "osv")
OLDEST = timedelta(days=30)  # of a database on disk
_SECONDS = 600


class NotCheckedError(Exception):
    """No advisories could be had; the message says why."""


@dataclass
class Advisories:
    """Advisories that were found.

    Attributes:
        source: Where they were looked up.
        found: For each package, the names of its advisories, with the releases that fix each.
    """

    source: str
    found: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def look_up(pins: Mapping[str, str]) -> Advisories:
    """Ask pip-audit's services, one after the other, until one has checked everything.

    Raises:
        NotCheckedError: None has.
    """
    reasons = []
    for service in SERVICES:
        try:
            return ask_service(pins, service)
        except NotCheckedError as error:
            reasons.append(f"{service}: {error}")
    raise NotCheckedError("; ".join(reasons))


def ask_service(pins: Mapping[str, str], service: str) -> Advisories:
    """Ask one service through pip-audit."""
    asked = {**pins, KNOWN[0]: KNOWN[1]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "packages.txt"
        file.write_text("".join(f"{name}=={version}\n" for name, version in asked.items()))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(file), "--no-deps"]
        command += ["--disable-pip", "--vulnerability-service", service, "--format", "json"]
        command += ["--progress-spinner", "off", "--cache-dir", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotCheckedError(f"no answer in {_SECONDS} seconds") from None
    try:
        answer = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError):
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        unreachable = "ConnectionError" in reason or "Timeout" in reason
        raise NotCheckedError("it cannot be reached" if unreachable else reason[:300]) from None
    return read_answer(answer, asked, service)


def read_answer(
    answer: Iterable[Mapping[str, Any]], asked: Mapping[str, str], service: str
) -> Advisories:
    """Read what pip-audit printed, and refuse it unless it speaks of every package.

    Raises:
        NotCheckedError: A package was left out, or the old release is said to have no advisories.
    """
    found, left_out = {}, set(asked)
    for one in answer:
        name = canonicalize_name(one["name"])
        if "skip_reason" not in one:
            left_out.discard(name)
        if one.get("vulns"):
            found[name] = {v["id"]: list(v.get("fix_versions", ())) for v in one["vulns"]}
    if KNOWN[0] not in found:
        raise NotCheckedError(f"it knows no advisory of {KNOWN[0]} {KNOWN[1]}, which has many")
    if left_out:
        raise NotCheckedError(f"it knows nothing of {', '.join(sorted(left_out))}")
    del found[KNOWN[0]]
    return Advisories(f"pip-audit, service {service}", found)


def look_up_stored(pins: Mapping[str, str], database: Path, today: datetime) -> Advisories:
    """Look packages up in a database on disk: a folder or a .zip of OSV records (.json, .yaml).

    Raises:
        NotCheckedError: There is no such database, or it is too old, or not whole.
    """
    if not database.exists():
        raise NotCheckedError(f"there is no '{database}'")
    asked = {**pins, KNOWN[0]: KNOWN[1]}
    found: dict[str, dict[str, list[str]]] = {}
    newest = ""
    for record in read_records(database):
        newest = max(newest, str(record.get("modified", "")))
        if record.get("withdrawn"):
            continue
        for name, fixes in list_affected(record, asked):
            found.setdefault(name, {})[str(record["id"])] = fixes
    if KNOWN[0] not in found:
        raise NotCheckedError(f"'{database}' has no advisory of {KNOWN[0]} {KNOWN[1]}")
    if datetime.fromisoformat(newest[:10]).replace(tzinfo=UTC) < today - OLDEST:
        raise NotCheckedError(f"'{database}' has nothing newer than {newest[:10]}; fetch it again")
    del found[KNOWN[0]]
    return Advisories(f"{database.name}, as of {newest[:10]}", found)


def read_records(database: Path) -> Iterator[dict[str, Any]]:
    """Read the records of a database, one after the other."""
    try:
        if database.suffix == ".zip":
            with zipfile.ZipFile(database) as archive:
                for name in archive.namelist():
                    if name.endswith(".json"):
                        yield json.loads(archive.read(name))
            return
        for file in sorted(database.rglob("*.json")):
            yield json.loads(file.read_bytes())
        for file in sorted(database.rglob("*.yaml")):
            yield yaml.load(file.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError, zipfile.BadZipFile) as error:
        raise NotCheckedError(f"'{database}' cannot be read: {error}") from error


def list_affected(
    record: Mapping[str, Any], pins: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """List which of these packages a record is about, each with the releases that fix it."""
    for affected in record.get("affected") or ():
        package = affected.get("package") or {}
        name = canonicalize_name(str(package.get("name", "")))
        if package.get("ecosystem") != "PyPI" or name not in pins:
            continue
        ranges = [r for r in affected.get("ranges") or () if r.get("type") == "ECOSYSTEM"]
        listed = pins[name] in map(str, affected.get("versions") or ())
        if listed or any(is_in_range(pins[name], r.get("events") or ()) for r in ranges):
            events = [event for r in ranges for event in r.get("events") or ()]
            yield name, [str(event["fixed"]) for event in events if "fixed" in event]


def is_in_range(version: str, events: Iterable[Mapping[str, str]]) -> bool:
    """Whether a release lies in a range of OSV: after an introduction, before its end."""
    release, inside = Version(version), False
    for event in sorted(events, key=_order):
        if "introduced" in event:
            inside = inside or release >= _parse(event["introduced"])
        elif "fixed" in event:
            inside = inside and release < _parse(event["fixed"])
        elif "last_affected" in event:
            inside = inside and release <= _parse(event["last_affected"])
    return inside


def _order(event: Mapping[str, str]) -> tuple[Version, bool]:
    kind, version = next(iter(event.items()))
    return _parse(version), kind == "introduced"


def _parse(text: str) -> Version:
    try:
        return Version(str(text))
    except InvalidVersion:
        raise NotCheckedError(f"a record has a version that is none: '{text}'") from None
