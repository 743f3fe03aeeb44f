import pytest

from tests.benchmark import sets
from tests.saved import save_image_model
from whence.models import load


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
