"""The workflows are linted, ask for no more than they need, and name what is there."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="workflows are not beside these tests")
# What publishes may write; everything else may only read.
WRITERS = {"attest": {"attestations", "id-token"}, "publish": {"id-token"}, "release": {"contents"}}


def read_jobs(workflow: Path) -> dict[str, dict]:
    return yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]


def list_steps(workflow: Path) -> list[dict]:
    return [step for job in read_jobs(workflow).values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_and_targets_that_are_named_exist(workflow):
    jobs = read_jobs(workflow)
    for job in jobs.values():
        assert set(job.get("needs", [])) <= set(jobs)
        used = re.findall(r"matrix\.(\w+)", yaml.safe_dump(job))
        assert set(used) == set(job.get("strategy", {}).get("matrix", ()))
    made = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    runs = "\n".join(step.get("run", "") for step in list_steps(workflow))
    words = " ".join(re.findall(r"^make (.+)$", runs, re.MULTILINE)).split()
    named = {word for word in words if re.fullmatch(r"\w[\w-]*", word)}
    assert named
    assert named <= set(made)
    assert all((ROOT / path).is_file() for path in re.findall(r"scripts/\w+\.py", runs))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_permissions_are_the_least(workflow):
    assert yaml.safe_load(workflow.read_text(encoding="utf-8"))["permissions"] == {}
    for name, job in read_jobs(workflow).items():
        writes = {scope for scope, level in job["permissions"].items() if level == "write"}
        assert writes == WRITERS.get(name, set()), name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_one_commit_each(workflow):
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    pins = re.findall(r"uses: (\S+)@(\S+) # v(\d+\.\d+\.\d+)$", "\n".join(texts), re.MULTILINE)
    assert len(pins) == sum(text.count("uses:") for text in texts)
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for _, commit, _ in pins)
    assert len({action for action, *_ in pins}) == len(set(pins))
    assert all("run" in step or "uses" in step for step in list_steps(workflow))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_supported_python_is_tested(workflow):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert supported
    assert read_jobs(workflow)["test"]["strategy"]["matrix"]["python"] == supported


def test_nothing_is_published_before_everything_was_checked():
    jobs = read_jobs(ROOT / ".github" / "workflows" / "release.yml")
    before = set(jobs["publish"]["needs"])
    for _ in jobs:
        before |= {need for name in before for need in jobs[name].get("needs", [])}
    assert before == set(jobs) - {"publish", "release"}


FAULTS = {
    "a key that is none": ("check-jsonschema", "runs-on: ubuntu", "run-on: ubuntu"),
    "an action by a tag": ("zizmor", r"@[0-9a-f]{40} # \S+", "@v7"),
    "text of others": ("zizmor", "run: make test", "run: echo ${{ github.head_ref }}"),
    "permission for all": ("zizmor", "permissions: {}", "permissions: write-all"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_linters_of_make_lint_find_faults(fault, tmp_path):
    pytest.importorskip("check_jsonschema")
    linter, pattern, wrong = FAULTS[fault]
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    text, count = re.subn(pattern, wrong, text)
    assert count
    file = tmp_path / "ci.yml"
    file.write_text(text, encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    options = re.search(rf"bin/{linter} (.*) \.github(/workflows/\*)?$", makefile, re.MULTILINE)[1]
    command = [Path(sys.executable).parent / linter, *options.split(), file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode, done.stdout


# Notes of a release -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes():
    path = ROOT / "scripts" / "release_notes.py"
    spec = importlib.util.spec_from_file_location("release_notes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHANGELOG = """# Changelog

## 1.2.0 (2026-01-02)
New: [this](docs/a.md), [x](https://x.y).

## 1.1.0 (2025-01-01)
Old.
"""


def test_notes_are_the_newest_section_with_links_to_the_tag(notes):
    made = notes.make_notes(CHANGELOG, "1.2.0", "v1.2.0", "https://host/us/it")
    assert made == "New: [this](https://host/us/it/blob/v1.2.0/docs/a.md), [x](https://x.y).\n"
    assert "[this](docs/a.md)" in notes.make_notes(CHANGELOG, "1.2.0", "v1.2.0")


@pytest.mark.parametrize(
    ("changelog", "tag", "message"),
    [
        (CHANGELOG, "v1.2.1", "does not name version 1.2.0"),
        (CHANGELOG, "1.2.0", "does not name version 1.2.0"),
        (CHANGELOG.replace("1.2.0", "1.3.0"), "v1.2.0", r"begins with '1\.3\.0"),
        (CHANGELOG.replace(" (2026-01-02)", " (unreleased)"), "v1.2.0", "unreleased"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(notes, changelog, tag, message):
    with pytest.raises(SystemExit, match=message):
        notes.make_notes(changelog, "1.2.0", tag)


def test_this_version_can_be_released(notes):
    version = notes.read_version(ROOT)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    before, found, rest = changelog.partition("## Unreleased")
    changelog = before + rest[rest.index("\n## ") :] if found else changelog
    assert notes.make_notes(changelog, version, f"v{version}").strip()
