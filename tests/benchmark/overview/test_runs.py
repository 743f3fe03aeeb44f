"""Finished runs, read from their folders."""

import json
import shutil

import pyarrow
import pyarrow.parquet as parquet
import pytest

from tests.benchmark.suites import METHODS, PROTOCOLS
from whence import WhenceError, benchmark
from whence.benchmark.overview.runs import find_run_folders, read_runs


@pytest.fixture
def folder(suite, tmp_path):
    return shutil.copytree(suite.folder, tmp_path / "suite")


def change(folder, **changes):
    path = folder / "run.json"
    content = json.loads(path.read_text())
    content["settings"] |= changes.pop("settings", {})
    path.write_text(json.dumps(content | changes))


@pytest.mark.usefixtures("quick")
def test_an_overview_of_folders_is_that_of_the_runs(suite, tmp_path):
    result = benchmark.write_overview(suite.folder, tmp_path / "out")
    assert result.unfinished == []
    for name in ("overview.csv", "overview.md", "ranks.csv", "agreement.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (suite.folder / name).read_bytes()
    page = (tmp_path / "out" / "overview.html").read_text()
    assert page.count('<a href="../') == 6


@pytest.mark.usefixtures("quick")
def test_methods_of_two_folders_become_one_run(other_vit, masked, tmp_path):
    for at, methods in enumerate(("tiba,random", "random,rollout")):
        benchmark.run_suite(PROTOCOLS, other_vit, masked, methods, out=tmp_path / str(at))
    (tmp_path / "whole").mkdir()
    joined = benchmark.write_overview([tmp_path / "0", tmp_path / "1"], tmp_path / "both")
    benchmark.run_suite(PROTOCOLS, other_vit, masked, METHODS, out=tmp_path / "whole")
    assert joined.overview.methods == ["tiba", "random", "rollout"]
    csv = (tmp_path / "both" / "overview.csv").read_text()
    assert csv == (tmp_path / "whole" / "overview.csv").read_text()


def test_published_rows_do(folder, suite):
    """Folders whose parts were joined to one table of rows."""
    run = folder / "segmentation-masks-masked-other"
    rows = []
    for file in sorted((run / "parts").glob("*/*.parquet")):
        table = parquet.read_table(file)
        method = table.schema.metadata[b"method"].decode()
        rows += [{"method": method, **row} for row in table.to_pylist()]
    shutil.rmtree(run / "parts")
    parquet.write_table(pyarrow.Table.from_pylist(rows), run / "rows.parquet")
    (read,), _ = read_runs([run])
    assert set(read.results) == {"tiba", "random", "rollout"}
    cells = suite.runs["segmentation · masks-masked · other"].table.cells
    assert {key: cell.value for key, cell in read.table.cells.items()} == {
        key: cell.value for key, cell in cells.items()
    }


def test_runs_that_have_not_finished_are_named(folder):
    one = folder / "segmentation-masks-masked-other"
    change(one, state="running")
    runs, unfinished = read_runs([folder])
    assert unfinished == [one]
    assert len(runs) == 5


def test_folders_that_are_no_runs(folder, tmp_path):
    with pytest.raises(WhenceError, match="is not a folder of benchmark runs"):
        benchmark.write_overview(tmp_path / "nowhere")
    with pytest.raises(
        WhenceError, match="Name at least one folder of benchmark runs, with --data"
    ):
        benchmark.write_overview([])
    with pytest.raises(WhenceError, match="'nemenyi' or 'wilcoxon', not 'x'"):
        benchmark.write_overview(tmp_path, ranking="x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text("{}")
    with pytest.raises(WhenceError, match="no finished benchmark run in"):
        benchmark.write_overview(tmp_path / "empty")
    assert len(find_run_folders([folder, folder])) == 6


def test_runs_of_one_name_must_be_equal(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    assert len(read_runs([folder, other])[0]) == 6
    change(other / "segmentation-masks-masked-other", settings={"limit": 2})
    with pytest.raises(WhenceError, match="'limit' is 3 in the first and 2 in the second"):
        read_runs([folder, other])


def test_lost_rows_are_told(folder):
    run = folder / "segmentation-masks-masked-other"
    next(run.glob("parts/*/*.parquet")).unlink()
    with pytest.raises(WhenceError, match="lacks rows of the method"):
        read_runs([run])


@pytest.mark.usefixtures("quick")
def test_figures_that_are_not_ranked(vit, photos, tmp_path):
    benchmark.run("trust", vit, photos, "random", limit=2, draws=1, out=tmp_path / "t")
    with pytest.raises(WhenceError, match="not ranked by figures of trust"):
        benchmark.write_overview(tmp_path / "t")
