"""One Ray for all tests of a process, whose workers can import what the tests import."""

import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def set_worker_path(environment) -> None:
    """Let processes with this environment import whence, the tests, and torchvision."""
    import whence

    folders = [_HERE / "site", Path(whence.__file__).parents[1], _HERE.parents[1]]
    known = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *([known] if known else [])])


@pytest.fixture(scope="session")
def ray_cluster():
    """Ray in this process, with four CPUs by its own count."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    patch = pytest.MonkeyPatch()
    environment = dict(os.environ)
    set_worker_path(environment)
    patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.delenv("RAY_ADDRESS", raising=False)
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()
    patch.undo()
