import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.benchmark import sets, suites
from tests.benchmark.runs import METHODS
from tests.saved import save_image_model
from whence import benchmark
from whence.benchmark import build_protocol
from whence.benchmark.columns import to_columns
from whence.benchmark.table import tabulate
from whence.models import load, load_language_model

NUMBER = 40


@pytest.fixture
def quick(monkeypatch):
    """Without what takes longest, in runs whose page nobody looks at."""
    suites.leave_out_pictures(monkeypatch)


@pytest.fixture(scope="session")
def whole(vit, photos, tmp_path_factory):
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return benchmark.run("perturbation", vit, photos, METHODS, batch=2, out=out)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    """A folder that holds another classifier of photos."""
    return save_image_model(tmp_path_factory.mktemp("models") / "other", half=False)


@pytest.fixture(scope="session")
def other_vit(other_model):
    return load(other_model)


@pytest.fixture(scope="session")
def suite(vit, other_vit, masked, photos, tmp_path_factory):
    """Two protocols, models and datasets, of which segmentation does not fit the photos."""
    with pytest.MonkeyPatch.context() as patch:
        suites.leave_out_pictures(patch)
        out = tmp_path_factory.mktemp("runs") / "suite"
        return suites.run_again(vit, other_vit, masked, photos, out)


@pytest.fixture
def copied(whole, tmp_path):
    return Path(shutil.copytree(whole.folder, tmp_path / "copied"))


@pytest.fixture
def partly_broken(tmp_path):
    folder = sets.photos(tmp_path / "set")
    (folder / "val" / "dog" / "dog1.png").write_bytes(b"no photo")
    return folder


def segmented(shift: float, seed: int = 0):
    """Rows of a method that is right on so many more pixels."""
    generator = np.random.default_rng(seed)
    rows = []
    for at in range(NUMBER):
        size = int(generator.integers(50, 200))
        right = int(size * min(1, 0.5 + shift + 0.1 * generator.random()))
        rows.append(
            {
                "sample": f"s{at}",
                "correct": right,
                "labelled": size,
                "intersection_foreground": right // 2,
                "union_foreground": size // 2 + 5,
                "intersection_background": right // 3,
                "union_background": size // 2 + 9,
                "average_precision": right / size,
                "f1": 0.9 * right / size,
            }
        )
    return rows


@pytest.fixture
def rows():
    return {"good": segmented(0.3), "bad": segmented(0.0, 1), "alike": segmented(0.3, 2)}


@pytest.fixture
def table(rows):
    results = {method: to_columns(found) for method, found in rows.items()}
    return tabulate(build_protocol("segmentation", {}), "A table", results, seed=1)


@pytest.fixture(scope="session")
def stories():
    """The embedded language model."""
    return load_language_model(device="cpu")
