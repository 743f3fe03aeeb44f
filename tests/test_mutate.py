"""Mutation testing finds the faults that tests notice, and those that they do not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
MODULE = '''
"""Tiny."""


def clip(value: int, low: int = 0) -> int:
    """Clip a value from below."""
    if value < low:
        return low
    return value


def unused(value):
    return value + 1


def count_down(value):
    if value < 0:
        raise ValueError(f"{value + 1} is below {0}")
    for _ in range(value):
        value -= 1
    return value
'''
TESTS = """
from package.tiny import clip, count_down


def test_clip():
    assert clip(3) == 3
    assert clip(-3) == 0


def test_count_down():
    assert count_down(3) == 0


def test_fails_without_a_fault():
    assert clip(1) == 2
"""


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPTS / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def list_changes(mutants, source: str) -> set[tuple[str, str]]:
    return {(one.before, one.after) for one in mutants.make_mutants("file.py", source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a is b", {"x = a is not b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = a + b", {"x = a - b"}),
        ("x = a[1:]", {"x = a[2:]", "x = a[0:]", "x = a[:]"}),
        ("x = a[-1]", {"x = a[1]", "x = a[-2]", "x = a[-0]"}),
        ("x = not a", {"x = a"}),
        ("x = True", {"x = False"}),
        ("x = f(a, b)", {"x = f(b, a)"}),
        ("x = isinstance(a, b)", set()),
        ("x = min(a)", {"x = max(a)"}),
        ("x = a.any()", {"x = a.all()"}),
        ("x = a if b else c", {"x = a if not b else c"}),
        ("x: Literal[1] = y", set()),
        ("x: TypeAlias = a[1]", set()),
        ("x = f'{a + 1}'", set()),
        ("import a", set()),
        ('"""Docstring 1."""', set()),
    ],
)
def test_mutants_of_one_line(mutants, source, expected):
    assert list_changes(mutants, source) == {(source, after) for after in expected}


def test_mutants_of_statements(mutants):
    source = (
        "def f(a: int=1) -> int:\n    for b in a:\n        if b:\n            break\n"
        "        g(b)\n    if a:\n        raise E(1 + 1)\n    return a"
    )
    changes = list_changes(mutants, source)
    assert changes == {
        ("def f(a: int=1) -> int:", "def f(a: int=2) -> int:"),
        ("def f(a: int=1) -> int:", "def f(a: int=0) -> int:"),
        ("if b:", "if not b:"),
        ("break", "continue"),
        ("break", "pass"),
        ("g(b)", "pass"),
        ("if a:", "if not a:"),
        ("raise E(1 + 1)", "pass"),
        ("return a", "return None"),
    }


def test_a_project_with_killed_and_surviving_mutants(tmp_path):
    for name, text in {
        "code/package/__init__.py": "",
        "code/package/tiny.py": MODULE,
        "checks/test_tiny.py": TESTS,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(SCRIPTS / "mutate.py"), "--root", str(tmp_path)]
    command += ["--source", "code", "--files", "code/package/*.py", "--tests", "checks"]
    command += ["--jobs", "2", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads((tmp_path / "out.json").read_text())
    outcomes = {(row["line"], row["after"]): row["outcome"] for row in rows}
    assert outcomes[7, "if value >= low:"] == "killed"
    assert outcomes[7, "if value <= low:"] == "survived"  # the same for every value
    assert outcomes[5, "def clip(value: int, low: int=1) -> int:"] == "killed"
    assert outcomes[13, "return value - 1"] == "not reached"
    assert outcomes[20, "value += 1"] == "killed"
    assert outcomes[18, "pass"] == "not reached"
    killed = sum(outcome == "killed" for outcome in outcomes.values())
    assert f"{len(rows)} mutants: {killed} killed" in done.stdout
    assert "2 tests pass without a fault" in done.stdout
    assert "1 fail and are left out: checks/test_tiny.py::test_fails_without_a_fault" in done.stdout
    assert "survived: package/tiny.py:7 (comparison)\n  - if value < low:" in done.stdout
    assert (tmp_path / "code/package/tiny.py").read_text() == MODULE


def test_a_run_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from mutation_runs import wait_for_tests

    for seconds, outcome in ((0.0, "survived"), (60.0, "timeout")):
        process = subprocess.Popen(["sleep", str(seconds)], start_new_session=True)
        limit = 30 if outcome == "survived" else 0.1
        assert wait_for_tests(process.pid, limit) == outcome
        process.returncode = 0  # it has been waited for


def test_shards_are_a_partition_of_the_sample(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from mutate import select_mutants

    listed = list(range(100))
    sample = select_mutants(listed, 40, 3, "1/1")
    shards = [select_mutants(listed, 40, 3, f"{i}/3") for i in (1, 2, 3)]
    assert len(sample) == 40
    assert sorted(one for shard in shards for one in shard) == sample
    assert select_mutants(listed, None, 0, "1/1") == listed
