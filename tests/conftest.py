import contextlib
import os
from pathlib import Path

import pytest
import torch

from tests.saved import save_image_model, save_text_model

pytest_plugins = ["tests.fixtures"]


def _let_torchvision_import() -> None:
    """Beside a CPU build of torch, torchvision's compiled operators are missing: declare two."""
    if torch.version.cuda is not None:
        return  # there they exist, and declaring them again ends the process
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


@pytest.fixture(scope="session")
def image_model(tmp_path_factory) -> Path:
    """A folder that holds a classifier of photos: cat, dog, crane."""
    return save_image_model(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def text_model(tmp_path_factory) -> Path:
    """A folder that holds a classifier of texts: negative, positive."""
    return save_text_model(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def embedded(image_model, text_model, monkeypatch) -> None:
    """Small models in the place of those that whence carries."""
    monkeypatch.setattr("whence.models.folder.EMBEDDED", {"image": image_model, "text": text_model})


@pytest.fixture
def programs(monkeypatch) -> list:
    """The inputs of each program that is made. Its graph runs as recorded: compiling is slow."""
    from whence.engine.compiled import making, program

    made = []

    class NotedProgram(program.Program):
        def __init__(self, compute, inputs):
            made.append(inputs)
            super().__init__(compute, inputs)

    monkeypatch.setattr(making, "Program", NotedProgram)
    monkeypatch.setattr(program, "compile_graph", lambda graph, inputs: graph)
    monkeypatch.setattr(making, "precompile_header", lambda: None)
    return made
