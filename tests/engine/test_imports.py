"""Code that runs eagerly does not know of compiling."""

import ast
from pathlib import Path

import pytest

import whence

PACKAGE = Path(whence.__file__).parent


def find_imports(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("folder", ["tracing", "rules", "evidence", "methods", "layout", "targets"])
def test_what_is_computed_does_not_know_how_it_is_run(folder):
    files = list((PACKAGE / folder).rglob("*.py"))
    assert files
    for file in files:
        engine = {name for name in find_imports(file) if name.startswith("whence.engine")}
        assert not engine, file


def test_only_the_explainer_knows_the_compiled_run():
    users = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if any(name.startswith("whence.engine.compiled") for name in find_imports(file))
    }
    assert {name for name in users if not name.startswith("engine/compiled/")} == {"explainer.py"}
