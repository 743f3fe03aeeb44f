"""What docs/policy.md promises: public names stay, and saved files can be opened."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from whence import Explanation, Generation

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"


def list_public() -> dict[str, dict[str, list[str]]]:
    path = ROOT / "scripts" / "public_names.py"
    if not path.is_file():
        pytest.skip("scripts are not beside these tests")
    spec = importlib.util.spec_from_file_location("public_names", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.list_public()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("public-*.json")), ids=lambda path: path.stem)
def test_public_names_and_options_stay(path):
    """What is missing was removed: deprecate it first, and then take it out of the list."""
    released, public = json.loads(path.read_text(encoding="utf-8")), list_public()
    assert released["names"]["whence"]
    for part, every in released.items():
        for name, options in every.items():
            assert name in public[part], f"{part}: {name}"
            assert set(options) - set(public[part][name]) == set(), f"{part}: {name}"


def read_json(name: str) -> dict:
    """The same result in JSON, as the release wrote it."""
    content = json.loads((GOLDEN / "saved" / f"{name}.json").read_text(encoding="utf-8"))
    return content["samples"][0]


def test_an_explanation_of_an_earlier_release_opens():
    result = Explanation.load(GOLDEN / "saved" / "explanation-0.2.safetensors")
    written = read_json("explanation-0.2")
    assert result.version == "0.2.0"
    assert result.target_names == [written["rows"]]
    table = result.matrix(by="word")
    assert list(table.columns) == written["columns"]
    assert np.array(table.values) == pytest.approx(np.array(written["scores"]))


def test_a_generation_of_an_earlier_release_opens():
    result = Generation.load(GOLDEN / "saved" / "generation-0.2.safetensors")
    written = read_json("generation-0.2")
    table = result.matrix(by="word")
    assert (list(table.rows), list(table.columns)) == (written["rows"], written["columns"])
    assert np.array(table.values) == pytest.approx(np.array(written["scores"]))


def test_results_over_many_inputs_of_an_earlier_release_open():
    pytest.importorskip("pyarrow")
    from whence.distributed import ResultFolder

    folder = ResultFolder(GOLDEN / "saved" / "results-0.2")
    rows = {row["id"]: row for row in folder.read_rows()}
    assert list(rows) == ["0000-jpeg.jpg", "0001-png.png", "0002-grey.png"]
    assert rows["0001-png.png"]["error"].startswith("The photo is damaged")
    result = folder.read_explanation(rows["0000-jpeg.jpg"])
    assert (result.method, result.version, result.grid) == ("rollout", "0.2.0", (4, 4))
    assert result.scores[0].tolist() == rows["0000-jpeg.jpg"]["scores"]
    assert folder.settings.method.name == "rollout"
    assert folder.read_done().count_distinct() == folder.count_rows() == 3
    assert {row["fingerprint"] for row in rows.values()} == {folder.description.fingerprint}
