"""The notebooks run, and what they show is small and tells nothing of a machine."""

import importlib.util
import os
import re
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SLOW = ("language", "text", "vision")  # each takes its kernel some seconds
RUN = [
    pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.stem)
    for path in NOTEBOOKS
]


@pytest.fixture(scope="module")
def execute():
    for needed in ("nbclient", "ipykernel"):
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location("execute", EXAMPLES / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_for_photos_texts_language_models_and_both():
    names = ["clip.ipynb", "language.ipynb", "text.ipynb", "vision.ipynb"]
    assert [path.name for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", RUN)
def test_every_cell_runs(path, execute, monkeypatch):
    places = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
    # What the tests need to import torchvision, its kernel needs as well.
    made = execute.run_notebook(path, before="import tests.conftest")
    saved = execute.nbformat.read(path, as_version=4)
    shown = [[kinds(cell) for cell in notebook.cells] for notebook in (made, saved)]
    assert shown[0] == shown[1], "run make notebooks"


def kinds(cell) -> list[tuple[str, ...]]:
    """Kinds of a cell's outputs; text that comes in several parts counts once for each stream."""
    found = [
        (o.output_type, o.get("name", ""), *o.get("data", {})) for o in cell.get("outputs", [])
    ]
    return [(kind, name, *sorted(data)) for (kind, name, *data), _ in groupby(found)]


def test_a_cell_that_fails_fails_the_test(execute, tmp_path, monkeypatch):
    cells = [execute.nbformat.v4.new_code_cell("1 / 0")]
    path = tmp_path / "broken.ipynb"
    execute.nbformat.write(execute.nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        execute.run_notebook(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_was_saved(path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)
    assert path.stat().st_size < 350_000
    content = path.read_text(encoding="utf-8")
    told = "".join(str(cell.get("outputs", "")) for cell in code)
    told = re.sub(r"[A-Za-z0-9+/=]{200,}", "", told)  # pictures
    assert not re.search(r"/(home|root|tmp|work|usr|opt|Users)/|[A-Z]:\\\\", told)
    assert "http" not in content.replace("http://www.w3.org/2000/svg", "")  # SVG's own name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (path.parent / link).exists(), link
