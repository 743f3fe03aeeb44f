import numpy as np
import pytest
from PIL import Image

from tests.datasets.layouts import write_mask, write_photo, write_text
from whence import WhenceError
from whence.datasets import load

OBJECT = np.zeros((12, 20), dtype=np.uint8)
OBJECT[2:6, 3:9] = 1


@pytest.mark.parametrize("value", [1, 128, 255])
def test_whatever_is_not_black_is_the_object(value, tmp_path):
    write_photo(tmp_path / "images" / "a.jpg")
    write_mask(tmp_path / "masks" / "a.png", OBJECT * np.uint8(value))
    sample = load(tmp_path).read("a.jpg")
    assert np.array_equal(sample.mask, OBJECT)
    assert sample.mask.dtype == np.uint8
    assert sample.label is None


@pytest.mark.parametrize("mode", ["1", "P", "RGB", "RGBA", "I;16", "LA"])
def test_masks_in_any_mode(mode, tmp_path):
    write_photo(tmp_path / "images" / "a.jpg")
    (tmp_path / "masks").mkdir()
    grey = Image.fromarray(OBJECT * np.uint8(255))
    grey.convert("RGB" if mode == "RGBA" else "L").convert(mode).save(tmp_path / "masks" / "a.png")
    assert np.array_equal(load(tmp_path).read("a.jpg").mask, OBJECT)


def test_colours_of_a_palette_count_and_not_their_numbers(tmp_path):
    write_photo(tmp_path / "images" / "a.jpg")
    (tmp_path / "masks").mkdir()
    coloured = Image.frombytes("P", (20, 12), (1 - OBJECT).tobytes())
    coloured.putpalette([255, 255, 255, 0, 0, 0])
    coloured.save(tmp_path / "masks" / "a.png")
    assert np.array_equal(load(tmp_path).read("a.jpg").mask, OBJECT)


def test_labels_and_folders(tmp_path):
    for name in ("one/a", "two/a", "b"):
        write_photo(tmp_path / "images" / f"{name}.jpg")
        write_mask(tmp_path / "masks" / f"{name}.png", OBJECT)
    write_text(tmp_path / "labels.csv", "image,label", "one/a,7", "two/a.jpg,tabby cat")
    dataset = load(tmp_path)
    found = {name: dataset.read(name).label for name in dataset.list_names()}
    assert found == {"b.jpg": None, "one/a.jpg": 7, "two/a.jpg": "tabby cat"}
    write_text(tmp_path / "labels.csv", "picture,kind", "one/a,7")
    with pytest.raises(WhenceError, match="no columns 'image' and one of label, class"):
        load(tmp_path)


def test_broken_records_are_named(tmp_path):
    for name in ("none", "jpeg", "small"):
        write_photo(tmp_path / "images" / f"{name}.jpg")
    write_mask(tmp_path / "masks" / "jpeg.jpg", OBJECT)
    write_mask(tmp_path / "masks" / "small.png", OBJECT[:4])
    dataset = load(tmp_path)
    for name, message in {
        "none.jpg": "'none.jpg' has no mask",
        "jpeg.jpg": r"jpeg\.jpg' is a JPEG",
        "small.jpg": "20 x 4 pixels, but its photo, upright, has 20 x 12",
    }.items():
        with pytest.raises(WhenceError, match=message) as raised:
            dataset.read(name)
        assert name in str(raised.value)


def test_the_mask_of_a_very_large_photo_shrinks_with_it(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    write_photo(tmp_path / "images" / "a.jpg", 5000, 10, exif=exif)  # upright: 10 wide
    values = np.zeros((5000, 10), dtype=np.uint8)
    values[:2500] = 255
    write_mask(tmp_path / "masks" / "a.png", values)
    sample = load(tmp_path).read("a.jpg")
    assert sample.mask.shape == sample.content.size[::-1]
    assert sample.mask.mean() == pytest.approx(0.5, abs=0.01)


def test_bombs_are_refused(tmp_path, monkeypatch):
    write_photo(tmp_path / "images" / "a.jpg")
    write_mask(tmp_path / "masks" / "a.png", np.zeros((100, 100), dtype=np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(WhenceError, match=r"mask '.*a\.png' has more pixels"):
        load(tmp_path).read("a.jpg")


def test_there_are_no_splits(tmp_path):
    write_photo(tmp_path / "images" / "a.jpg")
    write_mask(tmp_path / "masks" / "a.png", OBJECT)
    with pytest.raises(WhenceError, match="no splits"):
        load(tmp_path, split="val")
