"""Fixtures that tests of several folders share: small datasets, loaded models, `whence report`."""

import pytest
import torch
from typer.testing import CliRunner

from tests.benchmark import sets
from tests.saved import make_photo, save_image_model
from whence._util import torch_products
from whence.cli.app import app
from whence.engine.compiled import multiplying
from whence.faithfulness import precision
from whence.models import load

HOSTILE = "<img src=x onerror=alert(1)> &amp; \"'.png"


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    return sets.photos(tmp_path_factory.mktemp("set") / "photos")


@pytest.fixture(scope="session")
def masked(tmp_path_factory):
    return sets.masked(tmp_path_factory.mktemp("set") / "masked")


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    return sets.reviews(tmp_path_factory.mktemp("set") / "movies")


@pytest.fixture(scope="session")
def vit(image_model):
    return load(image_model)


@pytest.fixture(scope="session")
def cropping_vit(tmp_path_factory):
    """A model whose processor resizes the shorter side to 36 and cuts out the middle."""
    from transformers import CLIPImageProcessor

    folder = save_image_model(tmp_path_factory.mktemp("cropping"))
    CLIPImageProcessor(
        size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    return load(folder)


@pytest.fixture(scope="session")
def bert(text_model):
    return load(text_model)


@pytest.fixture
def here(tmp_path, monkeypatch, embedded):
    """A folder to work in, with photos, one of which is damaged and one badly named."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    make_photo().save(folder / "a.png")
    make_photo(30, 50, seed=1).save(folder / "b.jpg")
    make_photo(seed=2).save(folder / HOSTILE)
    (folder / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    return tmp_path


@pytest.fixture
def report():
    """Run the command; the output if it ends as expected."""

    def run(*arguments, code: int = 0):
        result = CliRunner().invoke(app, ["report", *map(str, arguments)])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def two_photos(tmp_path, monkeypatch, embedded):
    """A folder to work in, with two photos."""
    monkeypatch.chdir(tmp_path)
    make_photo().save("one.png")
    make_photo(30, 50, seed=1).save("two.jpg")
    return tmp_path


@pytest.fixture
def quick_products(monkeypatch):
    """A processor at which oneDNN is quicker than MKL, and products that are all large enough."""
    if torch_products.ONEDNN_PRODUCT is None or not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    for module in (torch_products, multiplying):
        monkeypatch.setattr(module, "is_quicker_by_onednn", lambda: True)
    monkeypatch.setattr(torch_products, "_FEW_PRODUCTS", 1)


@pytest.fixture
def full_precision(monkeypatch):
    """A processor that is no quicker at float16, so that curves are exact wherever tests run."""
    monkeypatch.setattr(precision, "has_quick_float16", lambda: False)
