import os
import signal
import sys
import threading

import numpy as np
import pytest

from tests.distributed.mixed import make_mixed_photos
from tests.distributed.processes import count_parts, find_actors, wait_for
from whence import demo
from whence.distributed import ResultFolder, RunSettings
from whence.distributed.ray_cluster import RayOptions
from whence.distributed.run import run_many
from whence.methods.registry import MethodSpecification
from whence.pipeline import ExplainSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")


def _settings(model, **options) -> RunSettings:
    pytest.importorskip("captum")
    method = MethodSpecification("ig", "integrated_gradients", options)
    return RunSettings(ExplainSettings((method,), str(model), device="cpu"), part_rows=4, threads=1)


def _read(folder) -> dict:
    return {row["id"]: row for row in ResultFolder(folder).read_rows()}


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(ray_cluster, image_model, tmp_path):
    from whence.distributed.ray_run import run_on_ray

    broken = make_mixed_photos(tmp_path / "photos", 40, 3, [demo.PHOTO])
    settings, out = _settings(image_model, steps=64), tmp_path / "out"
    killed = []

    def kill() -> None:
        wait_for(lambda: count_parts(out) >= 2)
        killed.extend(find_actors(os.getpid())[:1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    photos = [str(tmp_path / "photos")]
    summary = run_on_ray(photos, settings, out, RayOptions(actors=2))
    killer.join()
    run_many(photos, settings, tmp_path / "local")

    assert len(killed) == 1
    assert (summary.inputs, summary.explained, summary.failed) == (40, 37, 3)
    assert summary.is_complete
    assert ResultFolder(out).count_rows() == 40
    here, there = _read(tmp_path / "local"), _read(out)
    assert set(here) == set(there)
    assert sorted(name for name, row in there.items() if row["error"]) == sorted(broken)
    for name, row in here.items():
        other = there[name]
        assert (row["error"], row["name"], row["fingerprint"]) == (
            (other["error"], other["name"], other["fingerprint"])
        )
        if not row["error"]:
            np.testing.assert_allclose(other["scores"], row["scores"], atol=1e-6)
            np.testing.assert_allclose(other["probability"], row["probability"], atol=1e-6)
