"""The walk of `whence explain` through the package stays short, and never goes back and forth."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("walk", ROOT / "scripts" / "walk.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_explain_walks_through_few_modules(script):
    walk = script.walk_explain()
    assert {"cli.explain", "explainer", "methods.whence", "render.figure"} <= walk.modules.keys()
    assert len(walk.modules) <= script.MAX_MODULES, sorted(walk.modules)
    assert walk.pairs() == []


def test_modules_that_call_each_other_are_found(script):
    walk = script.Walk()
    walk.calls = {("a", "b"): "", ("b", "a"): "", ("b", "c"): ""}
    assert walk.pairs() == [("a", "b")]
