import io

import pytest
import torch
from PIL import Image
from rich.console import Console

from tests.zoo import CASES, build_model
from whence import MaximalPicture, WhenceError, activation_maximization
from whence.maximization import Head
from whence.render.display import show_image


@pytest.fixture(scope="module")
def picture() -> MaximalPicture:
    case = CASES["timm-vit-rectangle-fused"]
    return activation_maximization(build_model(case), Head(0, 1), steps=2)


def test_the_picture_saves_and_loads(picture, tmp_path):
    path = tmp_path / "head.png"
    picture.save(path)
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (48, 32))
        assert image.tobytes() == picture.image.tobytes()
    values = torch.frombuffer(bytearray(picture.image.tobytes()), dtype=torch.uint8)
    values = values.reshape(32, 48, 3).permute(2, 0, 1) / 255
    assert (values - picture.pixels).abs().max() <= 0.5 / 255 + 1e-6
    picture.save(str(tmp_path / "head.JPG"))
    with Image.open(tmp_path / "head.JPG") as image:
        assert (image.format, image.size) == ("JPEG", (48, 32))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head.JPG", "head.png"]


def test_a_file_that_cannot_be_written(picture, tmp_path):
    with pytest.raises(WhenceError, match=r"should end in \.png"):
        picture.save(tmp_path / "head.gif")
    with pytest.raises(WhenceError, match="cannot be written"):
        picture.save(tmp_path / "no" / "head.png")
    assert not list(tmp_path.iterdir())


def test_the_picture_on_a_terminal_and_in_a_notebook(picture, capsys):
    picture.show()
    heading, *rows = capsys.readouterr().out.rstrip("\n").split("\n")
    assert heading.startswith("Head(layer=0, head=1): ")
    assert [len(row) for row in rows] == [36] * 12
    with Image.open(io.BytesIO(picture._repr_png_())) as image:
        assert image.size == (48, 32)


def test_the_picture_in_coloured_half_blocks():
    image = Image.new("RGB", (36, 36), (200, 10, 20))
    image.paste((0, 30, 255), (0, 18, 36, 36))
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor", _environ={}
    )
    show_image(image, "cat: 4", console)
    heading, *rows = console.file.getvalue().rstrip("\n").split("\n")
    assert heading == "cat: 4"
    assert len(rows) == 18
    assert "38;2;200;10;20;48;2;200;10;20m▀" in rows[0]
    assert "38;2;0;30;255;48;2;0;30;255m▀" in rows[-1]
