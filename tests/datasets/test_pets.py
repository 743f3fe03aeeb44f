import numpy as np
import pytest

from tests.datasets.layouts import break_file, write_mask, write_photo, write_text
from whence import WhenceError
from whence.datasets import load

TRIMAP = np.full((12, 20), 2, dtype=np.uint8)
TRIMAP[3:9, 5:12] = 1
TRIMAP[3, 5:12] = 3
MASK = np.select([TRIMAP == 1, TRIMAP == 3], [1, 255], 0)


def write_original(folder):
    for name in ("Abyssinian_1", "beagle_2", "beagle_3"):
        write_photo(folder / "images" / f"{name}.jpg")
        write_mask(folder / "annotations" / "trimaps" / f"{name}.png", TRIMAP)
    write_text(folder / "annotations" / "trainval.txt", "beagle_3 2 2 1")
    write_text(folder / "annotations" / "test.txt", "beagle_2 2 2 1", "Abyssinian_1 1 1 1")
    comment = "#Image CLASS-ID SPECIES BREED ID"
    rows = ("Abyssinian_1 1 1 1", "beagle_2 2 2 1", "beagle_3 2 2 1")
    write_text(folder / "annotations" / "list.txt", comment, *rows)
    return folder


def read_labels(dataset):
    return {name: dataset.read(name).label for name in dataset.list_names()}


def test_the_original_layout(tmp_path):
    dataset = load(write_original(tmp_path))
    assert dataset.list_names() == ["beagle_2", "Abyssinian_1"]
    assert read_labels(dataset) == {"beagle_2": "dog", "Abyssinian_1": "cat"}
    sample = dataset.read("beagle_2")
    assert np.array_equal(sample.mask, MASK)
    assert sample.mask.dtype == np.uint8
    assert sample.content.size == (20, 12)


def test_breed_and_species_are_in_published_names(tmp_path):
    write_photo(tmp_path / "images" / "Maine_Coon_12.jpg")
    write_photo(tmp_path / "images" / "shiba_inu_3.jpg")
    write_photo(tmp_path / "images" / "my_cat_1.jpg")
    rows = ("Maine_Coon_12,285", "shiba_inu_3,285", "my_cat_1,285")
    write_text(tmp_path / "labels.csv", "image,imagenet_class", *rows)
    dataset = load(tmp_path)
    assert {name: dataset.read(name).other_labels for name in dataset.list_names()} == {
        "Maine_Coon_12": ("Maine_Coon", "cat"),
        "shiba_inu_3": ("shiba_inu", "dog"),
        "my_cat_1": (),
    }


def test_splits_of_the_original(tmp_path):
    write_original(tmp_path / "oxford-iiit-pet")
    assert load(tmp_path, split="trainval").list_names() == ["beagle_3"]
    assert load(tmp_path, split="all").list_names() == ["Abyssinian_1", "beagle_2", "beagle_3"]
    with pytest.raises(WhenceError, match="no split 'val'; it has: test, trainval, all"):
        load(tmp_path, split="val")


def test_without_lists_all_photos_count(tmp_path):
    write_original(tmp_path)
    for name in ("test", "trainval", "list"):
        (tmp_path / "annotations" / f"{name}.txt").unlink()
    assert read_labels(load(tmp_path)) == dict.fromkeys(["Abyssinian_1", "beagle_2", "beagle_3"])


def test_a_table_of_imagenet_classes(tmp_path):
    write_photo(tmp_path / "images" / "a.jpg")
    write_mask(tmp_path / "trimaps" / "a.png", TRIMAP)
    write_text(tmp_path / "labels.csv", "image,imagenet_class", "a,285")
    sample = load(tmp_path).read("a")
    assert sample.label == 285
    assert np.array_equal(sample.mask, MASK)


def test_a_table_of_species_and_splits(tmp_path):
    rows = ("a,Bengal,cat,trainval", "b,beagle,dog,test", "c,pug,dog,test")
    write_text(tmp_path / "labels.csv", "image,breed,species,split", *rows)
    for name in "abc":
        write_photo(tmp_path / "images" / f"{name}.jpg")
    assert read_labels(load(tmp_path)) == {"b": "dog", "c": "dog"}
    assert read_labels(load(tmp_path, split="trainval")) == {"a": "cat"}
    assert load(tmp_path, split="all").list_names() == ["a", "b", "c"]
    assert load(tmp_path).read("b").mask is None
    with pytest.raises(WhenceError, match="no split 'val'; it has: test, trainval"):
        load(tmp_path, split="val")


def test_broken_records_are_named(tmp_path):
    dataset = load(write_original(tmp_path))
    trimap = tmp_path / "annotations" / "trimaps" / "beagle_2.png"
    write_mask(trimap, np.zeros((12, 20), dtype=np.uint8))
    assert "other values than 1, 2 and 3" in find_problem(dataset)
    write_mask(trimap, TRIMAP[:5])
    assert "20 x 5 pixels, but its photo, upright, has 20 x 12" in find_problem(dataset)
    break_file(trimap)
    assert "is damaged" in find_problem(dataset)
    trimap.unlink()
    assert "'beagle_2' has no mask" in find_problem(load(tmp_path))
    (tmp_path / "images" / "beagle_2.jpg").unlink()
    assert "photo of 'beagle_2' is not there" in find_problem(load(tmp_path))


def find_problem(dataset) -> str:
    with pytest.raises(WhenceError, match="beagle_2") as raised:
        dataset.read("beagle_2")
    return str(raised.value)


def test_a_table_cannot_lead_out_of_the_folder(tmp_path):
    secret = write_photo(tmp_path / "secret.jpg")
    write_photo(tmp_path / "pets" / "images" / "a.jpg")
    write_text(tmp_path / "pets" / "labels.csv", "image,species", f"{secret.with_suffix('')},cat")
    with pytest.raises(WhenceError, match="photo of 'secret' is not there"):
        load(tmp_path / "pets").read("secret")


def test_real_pets(data):
    dataset = load(data / "pets")
    assert len(dataset.list_names()) == 200
    for name in dataset.list_names()[::20]:
        sample = dataset.read(name)
        assert sample.mask.shape == sample.content.size[::-1] == (256, 256)
        assert set(np.unique(sample.mask)) == {0, 1, 255}
        assert 151 <= sample.label <= 285, "breeds of ImageNet"


def test_real_pets_for_training(data):
    dataset = load(data / "pets160", split="trainval")
    assert len(dataset.list_names()) == 3680
    assert len(load(data / "pets160").list_names()) == 3369
    assert {dataset.read(name).label for name in dataset.list_names()[::400]} == {"cat", "dog"}
