import json
import os

import pytest

from tests.datasets.layouts import write_photo, write_text
from whence import WhenceError
from whence.datasets import load


def read_labels(path, **options):
    dataset = load(path, **options)
    return {name: dataset.read(name).label for name in dataset.list_names()}


def test_classes_json_gives_the_index(tmp_path):
    write_photo(tmp_path / "val" / "n01440764" / "a.JPEG")
    write_photo(tmp_path / "val" / "n02102040" / "a.jpg")
    classes = {"n01440764": [0, "tench"], "n02102040": [217, "English springer"]}
    write_text(tmp_path / "classes.json", json.dumps(classes))
    expected = {"n01440764/a.JPEG": 0, "n02102040/a.jpg": 217}
    assert read_labels(tmp_path) == read_labels(tmp_path / "val") == expected


def test_the_mapping_of_kaggle_counts_lines(tmp_path):
    write_photo(tmp_path / "ILSVRC" / "Data" / "CLS-LOC" / "val" / "n01443537" / "a.JPEG")
    mapping = ("n01440764 tench, Tinca tinca", "n01443537 goldfish")
    write_text(tmp_path / "LOC_synset_mapping.txt", *mapping)
    assert read_labels(tmp_path) == {"n01443537/a.JPEG": 1}


def test_a_thousand_classes_are_in_the_standard_order(tmp_path):
    first = write_photo(tmp_path / "n00000000" / "a.png")
    for number in range(1, 1000):
        folder = tmp_path / f"n{number * 7:08}"
        folder.mkdir()
        os.link(first, folder / "a.png")
    found = read_labels(tmp_path)
    assert found["n00000007/a.png"] == 1
    assert sorted(found.values()) == list(range(1000))
    (tmp_path / f"n{999 * 7:08}" / "a.png").unlink()
    assert set(read_labels(tmp_path).values()) == {None}


def test_other_folders_are_names_of_classes(tmp_path):
    write_photo(tmp_path / "cat" / "a.png")
    write_photo(tmp_path / "dog" / "a.png")
    write_photo(tmp_path / "n01440764" / "a.png")
    write_text(tmp_path / "cat" / "notes.txt", "no photo")
    write_photo(tmp_path / ".hidden" / "a.png")
    assert read_labels(tmp_path) == {
        "cat/a.png": "cat",
        "dog/a.png": "dog",
        "n01440764/a.png": None,
    }


@pytest.mark.parametrize("content", ["[", "[]", '{"n01440764": ["0", "tench"]}', '{"a": []}'])
def test_a_damaged_list_of_classes(content, tmp_path):
    write_photo(tmp_path / "n01440764" / "a.png")
    write_text(tmp_path / "classes.json", content)
    with pytest.raises(WhenceError, match=r"classes\.json' is not a list of classes"):
        load(tmp_path)


def test_a_damaged_mapping(tmp_path):
    write_photo(tmp_path / "n01440764" / "a.png")
    write_text(tmp_path / "LOC_synset_mapping.txt", "tench")
    with pytest.raises(WhenceError, match=r"LOC_synset_mapping\.txt' is not a list of classes"):
        load(tmp_path)
