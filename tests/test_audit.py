"""The audit counts nothing as checked that was not, and knows a licence that does not fit."""

import importlib.util
import json
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
TODAY = datetime(2026, 11, 16, tzinfo=UTC)


def load_script(name: str):
    pytest.importorskip("license_expression")
    if not (SCRIPTS / f"{name}.py").is_file():
        pytest.skip("scripts are not beside these tests")
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def advisories():
    return load_script("advisories")


@pytest.fixture(scope="module")
def licences():
    return load_script("licences")


@pytest.fixture(scope="module")
def installed():
    return load_script("installed")


class Installed:
    """An installed package, as importlib.metadata shows it."""

    def __init__(self, name: str = "x", requires: list[str] | None = None, **fields: str) -> None:
        self.metadata, self.requires, self.version = Message(), requires, "1.0"
        for key, value in {"Name": name, **fields}.items():
            self.metadata[key.replace("_", "-")] = value


# What is installed --------------------------------------------------------------------------------


def test_extras_bring_what_the_core_does_not(installed):
    requires = [
        "torch",
        "gradio; extra == 'web'",
        "whence[web]; extra == 'dev'",
        "no>1; extra=='web'",
    ]
    packages = {
        "whence": Installed("whence", requires, Provides_Extra="web"),
        "torch": Installed("torch", ["numpy", "never; python_version < '3'"]),
        "gradio": Installed("gradio", ["numpy", "Typer[all]"]),
        "typer": Installed("typer", ["rich; extra == 'all'", "other; extra == 'not'"]),
        **{name: Installed(name, None) for name in ("numpy", "rich", "other")},
    }
    packages["whence"].metadata["Provides-Extra"] = "dev"
    collected = installed.collect(packages, "whence")
    assert collected["core"].names == {"torch", "numpy"}
    assert collected["web"].names == collected["dev"].names == {"gradio", "typer", "rich"}
    assert collected["web"].missing == {"no"}
    with pytest.raises(SystemExit, match="whence is not installed"):
        installed.collect({}, "whence")


# Licences -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT", "Classifier": "License :: OSI Approved :: X"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: Apache Software License"}, "Apache-2.0"),
        ({"Classifier": "License :: OSI Approved", "License": "BSD"}, "BSD-3-Clause"),
        ({"License": "Apache 2.0 License\n\nand much more"}, "Apache-2.0"),
        ({"License": "UNKNOWN"}, ""),
        ({}, ""),
    ],
)
def test_a_licence_is_read_from_the_metadata(licences, fields, licence):
    assert licences.find_licence(Installed(**fields)) == licence


@pytest.mark.parametrize(
    "licence",
    [
        "MIT",
        "MPL-2.0 AND (Apache-2.0 OR MIT)",
        "GPL-3.0-only OR MIT",
        "Apache-2.0 WITH LLVM-exception",
    ],
)
def test_licences_that_go_with_apache(licences, licence):
    assert licences.find_problem("x", licence) == ""


@pytest.mark.parametrize(
    ("licence", "problem"),
    [
        ("GPL-3.0-only", "is under GPL-3.0-only"),
        ("MIT AND AGPL-3.0-or-later", "is under MIT AND AGPL"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "is under GPL-2.0-only WITH"),
        ("CC-BY-NC-4.0", "is under CC-BY-NC-4.0"),
        ("Proprietary", "not known: 'Proprietary'"),
        ("GNU General Public License (GPL)", "not known"),
        ("", "names no licence"),
    ],
)
def test_licences_that_do_not(licences, licence, problem):
    assert problem in licences.find_problem("x", licence)


# Advisories ---------------------------------------------------------------------------------------

OLD = {"name": "Django", "version": "2.2.0", "vulns": [{"id": "A-1", "fix_versions": ["2.2.1"]}]}
ASKED = {"numpy": "2.0", "django": "2.2.0"}
EVENTS = [{"fixed": "1.5"}, {"introduced": "2.0"}, {"introduced": "1.0"}, {"last_affected": "3"}]


def test_an_answer_that_knows_nothing_is_no_pass(advisories):
    """A mirror of PyPI without advisories: pip-audit itself ends with status 0."""
    skipped = [{"name": name, "skip_reason": "not found"} for name in ASKED]
    with pytest.raises(advisories.NotCheckedError, match="knows no advisory of django"):
        advisories.read_answer(skipped, ASKED, "pypi")
    empty = [{"name": name, "version": "1", "vulns": []} for name in ASKED]
    with pytest.raises(advisories.NotCheckedError, match="knows no advisory of django"):
        advisories.read_answer(empty, ASKED, "pypi")


def test_every_package_has_to_be_answered_for(advisories):
    for numpy in ([], [{"name": "numpy", "skip_reason": "not found"}]):
        with pytest.raises(advisories.NotCheckedError, match="nothing of numpy"):
            advisories.read_answer([OLD, *numpy], ASKED, "pypi")
    found = {"name": "numpy", "version": "2.0", "vulns": [{"id": "B-2", "fix_versions": []}]}
    assert advisories.read_answer([OLD, found], ASKED, "pypi").found == {"numpy": {"B-2": []}}


def test_services_are_asked_one_after_the_other(advisories, monkeypatch):
    def ask(pins, service):
        if service == "pypi":
            raise advisories.NotCheckedError("it is down")
        return advisories.Advisories(service)

    monkeypatch.setattr(advisories, "ask_service", ask)
    assert advisories.look_up({}).source == "osv"
    monkeypatch.setattr(advisories, "SERVICES", ("pypi",))
    with pytest.raises(advisories.NotCheckedError, match="pypi: it is down"):
        advisories.look_up({})


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.9", False),
        ("1.0", True),
        ("1.4", True),
        ("1.5", False),
        ("2.0rc1", False),
        ("2.1", True),
    ],
)
def test_ranges_of_osv(advisories, version, inside):
    events = [
        {"fixed": "1.5"},
        {"introduced": "2.0"},
        {"introduced": "1.0"},
        {"last_affected": "3"},
    ]
    assert advisories.is_in_range(version, events) is inside


def write_record(folder: Path, name: str, package: str, fixed: str, **fields: object) -> None:
    events = [{"introduced": "0"}, {"fixed": fixed}]
    affected = {"package": {"ecosystem": "PyPI", "name": package}}
    affected["ranges"] = [{"type": "ECOSYSTEM", "events": events}]
    modified = (TODAY - timedelta(days=3)).isoformat()
    record = {"id": name, "modified": modified, "affected": [affected], **fields}
    (folder / f"{name}.json").write_text(json.dumps(record))


def test_a_database_on_disk(advisories, tmp_path):
    write_record(tmp_path, "PYSEC-1", "Django", "3.0")
    write_record(tmp_path, "PYSEC-2", "NumPy", "2.1")
    write_record(tmp_path, "PYSEC-3", "numpy", "1.9")
    write_record(tmp_path, "PYSEC-4", "numpy", "2.1", withdrawn="2026-01-01T00:00:00Z")
    (tmp_path / "PYSEC-5.yaml").write_text(
        "{id: PYSEC-5, affected: [{package: {ecosystem: PyPI, name: numpy}, versions: ['2.0']}]}"
    )
    found = advisories.look_up_stored({"numpy": "2.0"}, tmp_path, TODAY)
    assert found.found == {"numpy": {"PYSEC-2": ["2.1"], "PYSEC-5": []}}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in tmp_path.glob("*.json"):
            archive.write(file, file.name)
    found = advisories.look_up_stored({"numpy": "2.0"}, tmp_path / "all.zip", TODAY)
    assert found.found == {"numpy": {"PYSEC-2": ["2.1"]}}
    assert found.source == "all.zip, as of 2026-11-13"


def test_a_database_that_is_old_or_empty_is_no_pass(advisories, tmp_path):
    with pytest.raises(advisories.NotCheckedError, match="there is no"):
        advisories.look_up_stored({}, tmp_path / "none", TODAY)
    with pytest.raises(advisories.NotCheckedError, match="no advisory of django"):
        advisories.look_up_stored({}, tmp_path, TODAY)
    write_record(tmp_path, "PYSEC-1", "django", "3.0")
    with pytest.raises(advisories.NotCheckedError, match="nothing newer than 2026-11-13"):
        advisories.look_up_stored({}, tmp_path, TODAY + timedelta(days=60))
    (tmp_path / "PYSEC-2.json").write_text("damaged")
    with pytest.raises(advisories.NotCheckedError, match="cannot be read"):
        advisories.look_up_stored({}, tmp_path, TODAY)


# The exit status ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "status"), [(None, 3), ({}, 0), ({"torch": {"B-2": ["1.1"]}}, 1)]
)
def test_the_status_tells_what_was_checked(found, status, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    audit = load_script("audit")

    def look_up(_pins):
        if found is None:
            raise audit.NotCheckedError("nobody answers")
        return audit.Advisories("a service", found)

    whole = {
        "whence": Installed("whence", ["torch"]),
        "torch": Installed("torch", License_Expression="MIT"),
    }
    monkeypatch.setattr(audit, "read_environment", lambda _: whole)
    monkeypatch.setattr(audit, "look_up", look_up)
    monkeypatch.setattr(sys, "argv", ["audit.py", "--python", "python", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        audit.main()
    assert ended.value.code == status
    assert ("Advisories were NOT checked" in capsys.readouterr().out) is (found is None)
    record = json.loads((tmp_path / "advisories.json").read_text())
    assert record["checked"] is (found is not None)
