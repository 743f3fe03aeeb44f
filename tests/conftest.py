import contextlib
import os
from pathlib import Path

import pytest
import torch


def _let_torchvision_import() -> None:
    """Beside a CPU build of torch, torchvision's compiled operators are missing: declare two."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    _let_torchvision_import.library = library  # kept alive
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_let_torchvision_import()
torch.set_num_threads(1)  # models are tiny, and tests run in parallel


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real weights, photos and texts."""
    folder = os.environ.get("WHENCE_DATA")
    if not folder:
        pytest.skip("WHENCE_DATA names no folder of real weights and photos")
    return Path(folder)
