"""Two nodes, of which workers, one node and the driver are killed for real."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed.conftest import set_worker_path
from tests.distributed.mixed import make_mixed_photos
from tests.distributed.processes import LIMIT, count_parts, find_actors, wait_for
from tests.saved import save_image_model
from whence.distributed import ResultFolder

COUNT, BROKEN, PART_ROWS = 2000, 20, 16


@pytest.fixture
def two_nodes(monkeypatch):
    """A Ray cluster of two nodes on this machine."""
    utils = pytest.importorskip("ray.cluster_utils")
    environment = dict(os.environ)
    set_worker_path(environment)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def _explain(photos, model, out, *more) -> subprocess.Popen:
    command = [sys.executable, "-m", "whence.cli", "explain", str(photos), "--model", str(model)]
    command += ["--part-rows", str(PART_ROWS), "--out", str(out), "--quiet", *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _finish(process: subprocess.Popen) -> str:
    _, printed = process.communicate(timeout=3 * LIMIT)
    assert process.returncode == 1, printed  # since inputs failed
    return printed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_every_input_has_one_row_after_all_kills(two_nodes, data, tmp_path):
    originals = sorted((data / "pets" / "images").glob("*.jpg"))[:20]
    photos, out = tmp_path / "photos", tmp_path / "out"
    broken = make_mixed_photos(photos, COUNT, BROKEN, originals)
    model = save_image_model(tmp_path / "model", half=False)
    ray = ["--ray", "--address", two_nodes.address, "--actors", "2"]
    first = _explain(photos, model, out, *ray)

    def wait_for_parts(count: int) -> None:
        wait_for(lambda: count_parts(out) >= count or first.poll() is not None)
        assert first.poll() is None, first.stderr.read()

    (second,) = two_nodes.worker_nodes
    second = second.all_processes["raylet"][0].process.pid
    wait_for_parts(8)
    actors = find_actors(os.getpid())
    assert len(actors) == 2
    assert len(find_actors(second)) == 1
    (other,) = set(actors) - set(find_actors(second))
    os.kill(other, signal.SIGKILL)
    wait_for_parts(30)
    os.kill(second, signal.SIGKILL)
    wait_for_parts(COUNT // PART_ROWS // 2)
    first.kill()
    first.wait()
    half = ResultFolder(out).count_rows()
    assert 0.4 * COUNT < half < COUNT

    printed = _finish(_explain(photos, model, out, *ray))
    _finish(_explain(photos, model, tmp_path / "local", "--format", "parquet"))

    rows = list(ResultFolder(out).read_rows())
    here = {row["id"]: row for row in ResultFolder(tmp_path / "local").read_rows()}
    there = {row["id"]: row for row in rows}
    assert len(rows) == len(there) == len(here) == COUNT
    assert set(there) == set(here)
    failed = {name: row["error"] for name, row in there.items() if row["error"]}
    assert sorted(failed) == sorted(broken)
    assert len(failed) == BROKEN
    assert all(here[name]["error"] == error for name, error in failed.items())
    assert broken[0] in printed
    for name in there.keys() - failed.keys():
        assert there[name]["name"] == here[name]["name"]
        np.testing.assert_allclose(there[name]["scores"], here[name]["scores"], atol=1e-6)
