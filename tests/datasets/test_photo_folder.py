"""Photos in one folder, with a table of labels or without one."""

import pytest

from tests.datasets.layouts import write_photo, write_text
from whence import WhenceError, datasets


def test_photos_without_labels(tmp_path):
    for name in ("b.png", "a.jpg"):
        write_photo(tmp_path / name)
    write_text(tmp_path / "notes.md", "Nothing to see.")
    flat = datasets.load(tmp_path)
    assert flat.list_names() == ["a.jpg", "b.png"]
    assert [flat.read(name).label for name in flat.list_names()] == [None, None]


def test_labels_in_a_table(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        write_photo(tmp_path / name)
    write_text(tmp_path / "labels.csv", "image,label", "a,cat", "b.png,1")
    labelled = datasets.load(tmp_path)
    assert [labelled.read(name).label for name in labelled.list_names()] == ["cat", 1, None]


def test_there_are_no_splits(tmp_path):
    write_photo(tmp_path / "a.png")
    with pytest.raises(WhenceError, match="no splits; name the folder"):
        datasets.load(tmp_path, split="val")
