"""The scripts that build and check a release notice what is wrong with one."""

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from whence import __version__

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "scripts"))
try:
    import archives
    import bounds
    import cleanroom
    import dist
finally:
    sys.path.remove(str(ROOT / "scripts"))

METADATA = "whence-9.dist-info"
PACKAGE = [pattern.replace("*", "a") for pattern in archives.NEEDED]


def write_wheel(folder: Path, names: list[str], content: bytes = b"a") -> Path:
    """Write a wheel of these files, with a RECORD for files that hold `a`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"a").digest()).rstrip(b"=").decode()
    record = io.StringIO()
    csv.writer(record).writerows([name, f"sha256={digest}", 1] for name in names)
    metadata = [name for name in archives.METADATA if name != "RECORD"]
    path = folder / "whence-9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in [*names, *(f"{METADATA}/{one}" for one in metadata)]:
            archive.writestr(name, content)
        archive.writestr(f"{METADATA}/RECORD", record.getvalue())
    return path


def write_sdist(folder: Path, names: list[str]) -> Path:
    """Write an sdist of these files, with the pyproject.toml of whence."""
    path = folder / "whence-9.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            content = PYPROJECT.encode() if name == "pyproject.toml" else b"a"
            member = tarfile.TarInfo(f"whence-9/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_what_the_sdist_includes_is_there():
    include = archives.read_include(PYPROJECT)
    assert {"src", "tests", "scripts", "LICENSE", "constraints.txt"} <= set(include)
    assert [name for name in include if not (ROOT / name).exists()] == []


def test_a_name_that_would_match_in_every_folder_is_refused():
    with pytest.raises(SystemExit, match=r"write '/README\.md'"):
        archives.read_include(PYPROJECT.replace('"/README.md"', '"README.md"'))


def test_the_changelog_begins_with_this_version_or_what_is_to_come():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert headings[headings[0] == "Unreleased"] == __version__


def test_hashes_are_those_that_sha256sum_checks(tmp_path):
    with pytest.raises(SystemExit, match="There is no SHA256SUMS"):
        archives.check_sums(tmp_path)
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.tar.gz").write_bytes(b"sources")
    archives.write_sums(tmp_path)
    wheel, sdist = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert wheel == f"{hashlib.sha256(b'wheel').hexdigest()}  a.whl"
    assert sdist == f"{hashlib.sha256(b'sources').hexdigest()}  b.tar.gz"
    assert archives.check_sums(tmp_path) == ["a.whl", "b.tar.gz"]
    if shutil.which("sha256sum"):
        command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
        assert subprocess.run(command, cwd=tmp_path).returncode == 0
    (tmp_path / "a.whl").write_bytes(b"whee1")
    with pytest.raises(SystemExit, match=r"a\.whl is not the file"):
        archives.check_sums(tmp_path)
    (tmp_path / "a.whl").unlink()
    with pytest.raises(SystemExit, match=r"a\.whl is not the file"):
        archives.check_sums(tmp_path)


def test_two_builds_that_differ_are_told_apart(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.whl").write_bytes(b"wheel")
    assert archives.find_differences(first, second) == []
    (second / "a.whl").write_bytes(b"whee1")
    (second / "b.tar.gz").write_bytes(b"")
    one, other = archives.find_differences(first, second)
    assert one.startswith("a.whl is ")
    assert other.startswith("b.tar.gz is missing")


def test_a_wheel_with_exactly_the_package_passes(tmp_path):
    archives.check_wheel(write_wheel(tmp_path, PACKAGE), [f"src/{name}" for name in PACKAGE])
    assert "whence/py.typed" in PACKAGE


@pytest.mark.parametrize(
    ("names", "content", "message"),
    [
        ([*PACKAGE, "whence/notes.txt"], b"a", "stray files: whence/notes.txt"),
        ([*PACKAGE, "tests/test_it.py"], b"a", "stray files: tests/test_it.py"),
        (PACKAGE[1:], b"a", f"lacks {PACKAGE[0]}"),
        (PACKAGE, b"b", "another hash"),
    ],
)
def test_a_wheel_that_is_not_the_package_is_refused(names, content, message, tmp_path):
    wheel = write_wheel(tmp_path, names, content)
    with pytest.raises(SystemExit, match=message):
        archives.check_wheel(wheel, [f"src/{name}" for name in PACKAGE])


def test_a_package_without_its_models_is_refused(tmp_path):
    names = [name for name in PACKAGE if not name.endswith("model.safetensors")]
    with pytest.raises(SystemExit, match="has no whence/demo"):
        archives.check_wheel(write_wheel(tmp_path, names), [f"src/{name}" for name in names])


def test_an_sdist_holds_what_is_included(tmp_path):
    sources = ["LICENSE", "README.md", "docs/README.md", "src/whence/api.py", "tests/test_it.py"]
    held = [name for name in sources if name != "docs/README.md"]
    archives.check_sdist(write_sdist(tmp_path, [*held, *archives.BY_THE_BUILD]), sources)
    with pytest.raises(SystemExit, match=r"stray files: docs/README\.md"):
        archives.check_sdist(write_sdist(tmp_path, [*sources, *archives.BY_THE_BUILD]), sources)
    with pytest.raises(SystemExit, match="lacks LICENSE"):
        archives.check_sdist(write_sdist(tmp_path, [*held[1:], *archives.BY_THE_BUILD]), sources)


def test_the_time_of_a_release_is_kept_in_its_sdist(tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert dist.find_epoch(tmp_path) == dist.NO_COMMIT
    information = tmp_path / "PKG-INFO"
    information.touch()
    os.utime(information, (1_700_000_000, 1_700_000_000))
    assert dist.find_epoch(tmp_path) == 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    assert dist.find_epoch(tmp_path) == 1_600_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SystemExit, match="not a number of seconds"):
        dist.find_epoch(tmp_path)


def test_a_checkout_carries_the_time_of_its_last_commit(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("GIT_COMMITTER_DATE", "1500000000 +0000")
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], [*name, "commit", "-q", "--allow-empty", "-m", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert dist.find_epoch(tmp_path) == 1_500_000_000


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_build_that_depends_on_when_it_is_made_is_refused(is_timed, tmp_path, monkeypatch):
    made: list[dict[str, str]] = []

    def build(_sources, out, _umask, variables):
        made.append(variables)
        out.mkdir(parents=True)
        (out / "a.whl").write_text(f"made at {len(made)}" if is_timed else "made")
        (out / "a.tar.gz").touch()

    monkeypatch.setattr(dist, "build", build)
    for check in ("check_wheel", "check_sdist"):
        monkeypatch.setattr(dist, check, lambda *_: None)
    monkeypatch.setattr(dist, "copy_sources", lambda *_: [])
    if is_timed:
        with pytest.raises(SystemExit, match=r"The two builds differ: a\.whl is"):
            dist.build_twice(ROOT, tmp_path, 7)
    else:
        assert dist.build_twice(ROOT, tmp_path, 7) == tmp_path / "first" / "dist"
    assert [one["SOURCE_DATE_EPOCH"] for one in made] == ["7", "7"]


def test_every_extra_for_users_is_tried_at_its_lowest():
    extras = set(tomllib.loads(PYPROJECT)["project"]["optional-dependencies"])
    tried = {extra for group in bounds.list_groups(PYPROJECT) for extra in group.extras}
    assert tried == extras - {"dev", "docs"}
    for path in bounds.NOT_HERE:
        assert (ROOT / path).exists(), path


def test_pythons_that_run_are_found():
    supported = cleanroom.list_supported(PYPROJECT)
    assert supported[0] == re.search(r'requires-python = ">=(.+)"', PYPROJECT)[1]
    found = cleanroom.find_pythons(supported)
    assert set(found) <= set(supported)
    for version, python in found.items():
        assert (
            f"Python {version}."
            in subprocess.run([python, "--version"], capture_output=True, text=True).stdout
        )


@pytest.mark.slow
def test_a_release_is_built_alike_from_the_repository_and_from_its_sdist(tmp_path):
    subprocess.run(["make", ".venv/dist/.installed"], cwd=ROOT, check=True)
    python, first = ROOT / ".venv" / "dist" / "bin" / "python", tmp_path / "first"
    subprocess.run([python, "scripts/dist.py", "--out", first], cwd=ROOT, check=True)
    with tarfile.open(next(first.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (sources,) = (tmp_path / "unpacked").iterdir()
    second = tmp_path / "second"
    subprocess.run([python, "scripts/dist.py", "--out", second], cwd=sources, check=True)
    assert len(archives.check_sums(first)) == 2
    assert archives.find_differences(first, second) == []
