import json

import pytest
from PIL import Image

from tests.datasets.layouts import write_photo, write_text
from whence import WhenceError
from whence.datasets import load

BOXES = [(2, 3, 10, 9), (0, 0, 20, 12)]


def make_annotation(boxes=BOXES, size=(20, 12), wnid="n01440764", extra=""):
    edges = ("xmin", "ymin", "xmax", "ymax")
    objects = "".join(
        f"<object><name>{wnid}</name><bndbox>"
        + "".join(f"<{edge}>{at}</{edge}>" for edge, at in zip(edges, box, strict=True))
        + "</bndbox></object>"
        for box in boxes
    )
    width, height = size
    drawn = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><folder>val</folder>{drawn}{objects}{extra}</annotation>"


def write_dataset(folder, content, **options):
    write_photo(folder / "val" / "a.JPEG", **options)
    write_text(folder / "Annotations" / "a.xml", content)
    return load(folder)


@pytest.mark.parametrize("photos", ["val", "val/n01440764", "ILSVRC/Data/CLS-LOC/val"])
def test_boxes_of_flat_and_sorted_photos(photos, tmp_path):
    write_photo(tmp_path / photos / "a.JPEG")
    write_photo(tmp_path / photos / "without.JPEG")
    home = tmp_path / "ILSVRC" if photos.startswith("ILSVRC") else tmp_path
    write_text(home / "Annotations" / "CLS-LOC" / "val" / "a.xml", make_annotation())
    write_text(tmp_path / "classes.json", json.dumps({"n01440764": [4, "tench"]}))
    for split in (None, "val"):
        dataset = load(tmp_path, split=split)
        (name,) = dataset.list_names()
        sample = dataset.read(name)
        assert sample.boxes == tuple(BOXES)
        assert sample.label == 4
        assert sample.content.size == (20, 12)
    assert name == ("n01440764/a.JPEG" if "n0" in photos else "a.JPEG")


def test_boxes_follow_a_photo_that_was_made_smaller(tmp_path):
    dataset = write_dataset(tmp_path, make_annotation([(100, 30, 180, 90)], size=(200, 120)))
    assert dataset.read("a.JPEG").boxes == ((10, 3, 18, 9),)


def test_boxes_are_cut_at_the_edge(tmp_path):
    dataset = write_dataset(tmp_path, make_annotation([(-3, 1, 25, 13)]))
    assert dataset.read("a.JPEG").boxes == ((0, 1, 20, 12),)


def test_only_objects_of_the_class_count(tmp_path):
    other = make_annotation([(0, 0, 1, 1)], wnid="n02102040")
    other = other[other.index("<object>") : other.index("</annotation>")]
    assert len(write_dataset(tmp_path, make_annotation(extra=other)).read("a.JPEG").boxes) == 2


def test_the_folder_tells_files_of_the_same_name_apart(tmp_path):
    for folder, boxes in {"one": BOXES[:1], "two": BOXES[1:]}.items():
        write_photo(tmp_path / "val" / folder / "a.png")
        write_text(tmp_path / "Annotations" / folder / "a.xml", make_annotation(boxes))
    write_photo(tmp_path / "val" / "three" / "a.png")
    dataset = load(tmp_path)
    assert dataset.read("one/a.png").boxes == tuple(BOXES[:1])
    assert dataset.read("two/a.png").boxes == tuple(BOXES[1:])
    with pytest.raises(WhenceError, match=r"Several XML files .* 'three/a\.png'"):
        dataset.read("three/a.png")


LAUGHS = """<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "haha">]><annotation>&b;</annotation>"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS, "has a DOCTYPE"),
        ("<annotation>", "is not a file of boxes"),
        ("not XML", "is not a file of boxes"),
        (make_annotation([]), "has no box"),
        (make_annotation([(1, 2, "nan", 4)]), "is not a file of boxes"),
        (make_annotation([(1, 2, "", 4)]), "is not a file of boxes"),
        (make_annotation([(5, 5, 5, 9)]), "empty or lies outside"),
        (make_annotation([(50, 50, 60, 60)]), "empty or lies outside"),
        (make_annotation(size=(12, 20)), "before it was turned"),
        (" " * 1_000_001, "too large"),
    ],
)
def test_broken_records_are_named(content, message, tmp_path):
    with pytest.raises(WhenceError, match=message) as raised:
        write_dataset(tmp_path, content).read("a.JPEG")
    assert "a.JPEG" in str(raised.value)


def test_a_doctype_in_another_encoding(tmp_path):
    dataset = write_dataset(tmp_path, make_annotation())
    (tmp_path / "Annotations" / "a.xml").write_text(LAUGHS, encoding="utf-16")
    with pytest.raises(WhenceError, match="has a DOCTYPE"):
        dataset.read("a.JPEG")


def test_a_missing_size_means_that_of_the_photo(tmp_path):
    dataset = write_dataset(tmp_path, make_annotation(size=(0, 0)))
    assert dataset.read("a.JPEG").boxes == tuple(BOXES)


def test_no_photo_belongs_to_a_file(tmp_path):
    write_photo(tmp_path / "val" / "b.JPEG")
    write_text(tmp_path / "Annotations" / "a.xml", make_annotation())
    with pytest.raises(WhenceError, match="No photo in"):
        load(tmp_path)


def test_the_fingerprint_tells_the_boxes(tmp_path):
    dataset = write_dataset(tmp_path, make_annotation([(1, 2, 3, 4)]))
    before = dataset.compute_fingerprint()
    assert dataset.compute_fingerprint() == before
    write_text(tmp_path / "Annotations" / "a.xml", make_annotation([(1, 2, 3, 5)]))
    assert load(tmp_path).compute_fingerprint() != before


def test_names_do_not_open_photos(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "open", None)
    write_text(tmp_path / "val" / "a.JPEG", "not opened")
    write_text(tmp_path / "Annotations" / "a.xml", make_annotation())
    assert load(tmp_path).list_names() == ["a.JPEG"]
