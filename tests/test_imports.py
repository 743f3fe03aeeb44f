"""Heavy libraries are imported only where they are used."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import whence

PACKAGE = Path(whence.__file__).parent
EXTRAS = set(
    "captum datasets fastapi gradio h5py httpx lance matplotlib pandas pyarrow ray scipy "
    "sklearn starlette timm torchvision".split()
)
CORE = {"PIL", "isal", "jinja2", "numpy", "rich", "safetensors", "torch", "transformers", "typer"}
# Packages that are imported as a whole only by those who use their library.
OWN = {"distributed": {"pandas", "pyarrow", "ray"}, "web": {"gradio", "starlette"}}


def list_imports(code: str) -> Iterator[str]:
    """The libraries that a module imports when it is imported itself."""
    waiting: list[ast.stmt] = ast.parse(code).body
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting = [*waiting, *node.orelse]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]


def test_modules_import_extras_only_inside_of_functions():
    found = {
        (file.relative_to(PACKAGE).parts[0], name)
        for file in PACKAGE.rglob("*.py")
        for name in EXTRAS.intersection(list_imports(file.read_text(encoding="utf-8")))
    }
    allowed = {(package, name) for package, names in OWN.items() for name in names}
    assert ("web", "gradio") in found
    assert found - allowed == set()


def run_and_list(code: str, libraries: set[str]) -> list[str]:
    """Which of these libraries are imported after some code, in a Python of its own."""
    shown = f"{code}\nimport sys\nprint(*sorted(set(sys.modules) & set({sorted(libraries)!r})))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_whence_imports_no_library():
    assert run_and_list("import whence", EXTRAS | CORE) == []
    assert run_and_list("import whence, numpy", EXTRAS | CORE) == ["numpy"]


HELP = """
from whence.cli.app import app
try:
    app({arguments!r})
except SystemExit:
    pass
"""
# What Typer and rich would import to show help, and help does not need.
PUT_OFF = {"attr", "markdown_it", "pygments", "rich.markdown", "rich.pretty", "rich.traceback"}


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "--help"], ["explain", "--batch"]])
def test_help_imports_only_what_shows_it(arguments):
    code = f"import io, sys\nsys.stdout = io.StringIO()\n{HELP.format(arguments=arguments)}"
    libraries = EXTRAS | CORE | PUT_OFF
    listed = run_and_list(f"{code}\nsys.stdout = sys.__stdout__", libraries)
    assert listed == ["rich", "typer"]


def test_what_help_left_out_is_there_for_others():
    code = """
import typer.rich_utils
from whence.cli.app import app
import rich.markdown, rich.traceback
assert typer.rich_utils.Markdown("a").markup == "a"
assert isinstance(typer.rich_utils.Markdown("a"), rich.markdown.Markdown)
"""
    before_whence, after_whence = code, code.replace("import typer.rich_utils\n", "", 1)
    after_whence = after_whence.replace("import rich.", "import typer.rich_utils, rich.", 1)
    for one in (before_whence, after_whence):
        assert "rich.markdown" in run_and_list(one, PUT_OFF)


@pytest.mark.slow
def test_all_public_names_need_no_extra():
    code = "import whence\nfor name in whence.__all__:\n    getattr(whence, name)"
    libraries = run_and_list(code, EXTRAS | CORE)
    assert "torch" in libraries
    assert EXTRAS.intersection(libraries) == set()


@pytest.mark.parametrize("name", ["loaded", "pair_loading", "wrapping"])
def test_modules_of_models_are_there_when_asked_for(name):
    assert run_and_list("import whence.models", {"torch"}) == []
    code = f"import whence.models\nwhence.models.{name}.__name__"
    assert run_and_list(code, {"torch"}) == ["torch"]


def test_a_name_that_models_do_not_have():
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        whence.models.absent  # noqa: B018
