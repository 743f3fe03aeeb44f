import pytest

from tests.web.client import Client
from whence.models import load
from whence.web.desk import Desk


@pytest.fixture(scope="session")
def desk(image_model, text_model) -> Desk:
    """Two small models."""
    return Desk({"photos": load(image_model), "texts": load(text_model)})


@pytest.fixture(scope="module")
def client(desk):
    """A server on loopback, to be asked as any program would."""
    pytest.importorskip("gradio", reason="whence[web] is not installed")
    from whence.web.server import Place, serving

    with serving(desk, Place()) as address, Client(address) as client:
        yield client
