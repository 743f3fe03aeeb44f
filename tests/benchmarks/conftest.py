import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load_script(monkeypatch):
    """Loads a script of benchmarks as a module; its neighbours are found as when it is run."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def load(name: str):
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def speed(load_script):
    return load_script("speed")


@pytest.fixture
def make_run():
    """Makes a run of given rows: (what, variant, milliseconds of rounds), beside a forward."""
    from benchmarks.timing.rounds import Group, WarmGroup
    from benchmarks.timing.runs import Run

    def make(name: str, rows: list[tuple[str, str, list[float]]]) -> Run:
        times = {(what, variant): rounds for what, variant, rounds in rows}
        group = Group("plain", "Plain: a model", {"batch": 1}, dict.fromkeys(times), calls=0)
        machine = {"cpu": "a processor", "threads": 2, "gpu": None}
        versions = {"whence": "1", "commit": None, "torch": "2", "transformers": "5"}
        made = list(WarmGroup(group).make_rows(times))
        return Run(name, "2026-01-01T00:00:00+00:00", "python speed.py", machine, versions, made)

    return make
