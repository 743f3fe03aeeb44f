"""Telling datasets apart, and what is said where there is none."""

from pathlib import Path

import pytest

from tests.datasets.layouts import write_json_lines, write_mask, write_photo, write_text
from whence import WhenceError, datasets


def refuse(message: str, *arguments: object) -> str:
    with pytest.raises(WhenceError, match=message) as raised:
        datasets.load(*arguments)
    return str(raised.value)


def test_what_is_not_there_is_said_with_where_to_get_it(tmp_path):
    said = refuse("is not there", tmp_path / "none")
    assert "image-net.org" in said
    assert "eraserbenchmark.com" in said
    assert "robots.ox.ac.uk" in said
    assert "\n" not in said


def test_a_mistyped_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    said = refuse("is not there", tmp_path / "phtos")
    assert said.endswith(f"may not be read. Did you mean '{tmp_path / 'photos'}'?")


def test_with_a_format_only_its_source_is_named(tmp_path):
    said = refuse("is not there", tmp_path / "none", "pets")
    assert "robots.ox.ac.uk" in said
    assert "image-net.org" not in said


def test_an_empty_folder(tmp_path):
    (tmp_path / ".DS_Store").touch()
    assert "image-net.org" in refuse("is empty", tmp_path)


def test_an_unknown_layout(tmp_path):
    write_text(tmp_path / "notes.md", "Nothing here.")
    assert "gtsegs_ijcv.mat" in refuse("laid out as no dataset", tmp_path)
    assert "gtsegs_ijcv.mat" in refuse("laid out as no dataset", tmp_path / "notes.md")


def test_an_unknown_format(tmp_path):
    assert "imagenet_boxes" in refuse("no format 'coco'", tmp_path, "coco")


@pytest.mark.parametrize("name", datasets.FORMATS)
def test_a_format_that_was_asked_for_and_is_not_there(name, tmp_path):
    write_text(tmp_path / "notes.md", "Nothing here.")
    assert str(tmp_path) in refuse(f"'{tmp_path}'", tmp_path, name)
    assert refuse(f"'{tmp_path}|no splits", tmp_path, name, "val")


def test_names_of_samples_that_are_not_there(tmp_path):
    write_photo(tmp_path / "cat" / "a.png")
    with pytest.raises(WhenceError, match="imagenet has no sample 'dog/a"):
        datasets.load(tmp_path).read("dog/a.png")


def test_each_layout_is_recognised(tmp_path):
    write_photo(tmp_path / "classes" / "cat" / "a.png")
    write_photo(tmp_path / "boxes" / "val" / "a.png")
    write_text(tmp_path / "boxes" / "Annotations" / "val" / "a.xml", "<annotation/>")
    write_photo(tmp_path / "animals" / "images" / "a.png")
    write_mask(tmp_path / "animals" / "annotations" / "trimaps" / "a.png", make_ones())
    write_text(tmp_path / "animals" / "annotations" / "xmls" / "a.xml", "<annotation/>")
    write_photo(tmp_path / "own" / "images" / "a.png")
    write_mask(tmp_path / "own" / "masks" / "a.png", make_ones())
    write_json_lines(tmp_path / "task" / "val.jsonl", {"annotation_id": "a"})
    write_text(tmp_path / "task" / "docs" / "a", "A text .")
    write_text(tmp_path / "table.csv", "text,label", "Good.,1")
    write_photo(tmp_path / "flat" / "a.png")
    write_photo(tmp_path / "subset" / "validation" / "n01443537" / "a.JPEG")
    write_mask(tmp_path / "subset" / "validation-segmentation" / "n01443537" / "a.png", make_ones())
    write_text(tmp_path / "birds" / "classes.json", "[]")
    write_text(tmp_path / "birds" / "dataset_test.json", '[{"class_idx": 0}]')
    write_photo(tmp_path / "birds" / "test" / "0" / "000000.png")
    write_photo(tmp_path / "plain" / "images" / "a.png")
    names = {
        path: datasets.load(tmp_path / path).name
        for path in sorted(p.name for p in tmp_path.iterdir())
    }
    assert names == {
        "animals": "pets",
        "birds": "funnybirds",
        "boxes": "imagenet_boxes",
        "classes": "imagenet",
        "flat": "photos-flat",
        "own": "masks-own",
        "plain": "photos-plain",
        "subset": "imagenet_s",
        "table.csv": "csv-table",
        "task": "eraser-task-val",
    }


def make_ones():
    import numpy as np

    return np.ones((12, 20), dtype=np.uint8)


def test_the_page_tells_of_every_format():
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
    for name, one in datasets.FORMATS.items():
        assert f"\n## `{name}`\n" in page
        assert all(word in page for word in one.source.split() if word.startswith("http"))
