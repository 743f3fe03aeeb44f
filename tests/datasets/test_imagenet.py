import os

import numpy as np
import pytest
from PIL import Image

from tests.datasets.layouts import break_file, write_photo, write_text
from whence import WhenceError
from whence.datasets import load


def test_splits(tmp_path):
    for split in ("train", "val"):
        write_photo(tmp_path / split / "cat" / f"{split}.png")
    assert load(tmp_path).list_names() == ["cat/val.png"]
    assert load(tmp_path, split="train").list_names() == ["cat/train.png"]
    assert load(tmp_path / "train", split="train").list_names() == ["cat/train.png"]
    with pytest.raises(WhenceError, match="no split 'test'"):
        load(tmp_path, split="test")


def test_broken_photos_are_listed_and_named_when_read(tmp_path):
    break_file(write_photo(tmp_path / "cat" / "broken.png"))
    write_photo(tmp_path / "cat" / "whole.png")
    dataset = load(tmp_path)
    assert dataset.list_names() == ["cat/broken.png", "cat/whole.png"]
    with pytest.raises(WhenceError, match=r"cat/broken\.png'"):
        dataset.read("cat/broken.png")
    assert dataset.read("cat/whole.png").content.size == (20, 12)


def test_bombs_are_refused(tmp_path, monkeypatch):
    write_photo(tmp_path / "cat" / "a.png", 40, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(WhenceError, match="more pixels than whence opens"):
        load(tmp_path).read("cat/a.png")


def test_photos_come_upright_and_in_rgb(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    write_photo(tmp_path / "cat" / "turned.jpg", exif=exif)
    Image.new("L", (5, 4), 9).save(tmp_path / "cat" / "grey.png")
    dataset = load(tmp_path)
    assert dataset.read("cat/turned.jpg").content.size == (12, 20)
    assert dataset.read("cat/grey.png").content.mode == "RGB"


def test_names_do_not_open_photos(tmp_path, monkeypatch):
    write_photo(tmp_path / "cat" / "a.png")

    def opened(*_, **__):
        raise AssertionError

    monkeypatch.setattr(Image, "open", opened)
    dataset = load(tmp_path)
    assert dataset.list_names() == ["cat/a.png"]
    assert len(dataset.compute_fingerprint()) == 64


def test_the_fingerprint_tells_names_sizes_and_labels(tmp_path):
    file = write_photo(tmp_path / "one" / "cat" / "a.png")
    first = load(tmp_path / "one").compute_fingerprint()
    assert load(tmp_path / "one").compute_fingerprint() == first
    (tmp_path / "one").rename(tmp_path / "two")
    assert load(tmp_path / "two").compute_fingerprint() == first, "where it lies does not matter"
    file = tmp_path / "two" / "cat" / "a.png"
    file.write_bytes(file.read_bytes() + b"\0")
    second = load(tmp_path / "two").compute_fingerprint()
    file.rename(file.with_name("b.png"))
    third = load(tmp_path / "two").compute_fingerprint()
    write_text(tmp_path / "two" / "classes.json", '{"cat": [3, "cat"]}')
    fourth = load(tmp_path / "two").compute_fingerprint()
    assert len({first, second, third, fourth}) == 4


@pytest.mark.skipif(os.name != "posix", reason="names of files are text elsewhere")
def test_names_that_are_not_utf8_can_be_written(tmp_path):
    file = write_photo(tmp_path / "cat" / "a.png")
    os.rename(file, os.fsencode(file.parent) + b"/\xff.png")
    dataset = load(tmp_path)
    (name,) = dataset.list_names()
    assert name.encode() == b"cat/\\xff.png"
    assert dataset.read(name).label == "cat"


def test_real_photos(data):
    dataset = load(data / "imagenet")
    names = dataset.list_names()
    assert len(names) == len(set(names)) == 500
    samples = [dataset.read(name) for name in names[::25]]
    assert all(0 <= sample.label < 1000 for sample in samples)
    assert len({sample.label for sample in samples}) == 20
    assert all(min(sample.content.size) == 256 for sample in samples)
    assert all(np.asarray(sample.content).shape[2] == 3 for sample in samples)
    assert load(data / "imagenet" / "val").compute_fingerprint() == dataset.compute_fingerprint()
