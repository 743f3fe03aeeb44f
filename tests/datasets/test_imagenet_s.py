import numpy as np
import pytest

from tests.datasets.layouts import break_file, write_mask, write_photo, write_text
from whence import WhenceError
from whence.datasets import load

# Classes of ImageNet-S 50 in alphabetical order; masks number them from 1.
FISH, SHARK = "n01443537", "n01491361"


def write_ids(path, ids):
    """Write numbers of classes as R + 256 G."""
    values = np.stack([ids % 256, ids // 256, np.zeros_like(ids)], -1)
    return write_mask(path, values.astype(np.uint8))


def make_ids(class_id, other=0):
    ids = np.zeros((12, 20), dtype=np.int64)
    ids[2:9, 4:15] = class_id
    ids[2, 4:15] = 1000
    ids[10:, :3] = other
    return ids


def write_subset(folder, split="validation", count=2, first_id=1):
    wnids = [FISH, SHARK, *(f"n{20000000 + at}" for at in range(count - 2))]
    for number, wnid in enumerate(wnids, first_id):
        name = f"{wnid}/ILSVRC2012_val_{number:08}"
        write_photo(folder / split / f"{name}.JPEG")
        write_ids(folder / f"{split}-segmentation" / f"{name}.png", make_ids(number))
    return folder


def test_photos_with_masks_by_class(tmp_path):
    dataset = load(write_subset(tmp_path, first_id=300))
    assert dataset.name == "imagenet_s"
    name = f"{FISH}/ILSVRC2012_val_00000300.JPEG"
    assert dataset.list_names()[0] == name
    sample = dataset.read(name)
    assert sample.content.size == (20, 12)
    assert sample.label is None, "part of the classes does not tell the index"
    expected = np.zeros((12, 20))
    expected[3:9, 4:15] = 1
    expected[2, 4:15] = 255
    assert np.array_equal(sample.mask, expected)
    assert sample.mask.dtype == np.uint8


def test_of_a_whole_subset_other_classes_are_background(tmp_path):
    write_subset(tmp_path / "ImageNetS50", count=50)
    file = f"{SHARK}/ILSVRC2012_val_00000002"
    masks = tmp_path / "ImageNetS50" / "validation-segmentation"
    write_ids(masks / f"{file}.png", make_ids(2, other=1))
    assert load(tmp_path).name == "imagenet_s-50"
    sample = load(tmp_path).read(f"{file}.JPEG")
    assert sample.mask[5, 5] == 1
    assert sample.mask[11, 0] == 0, "a fish beside the shark"
    write_ids(masks / f"{file}.png", make_ids(1))
    assert not (load(tmp_path).read(f"{file}.JPEG").mask == 1).any()


def test_labels_come_from_a_list_of_classes(tmp_path):
    write_subset(tmp_path)
    write_text(tmp_path / "classes.json", f'{{"{FISH}": [1, "goldfish"], "{SHARK}": [2, "shark"]}}')
    dataset = load(tmp_path)
    assert [dataset.read(name).label for name in dataset.list_names()] == [1, 2]


def test_splits(tmp_path):
    write_subset(tmp_path, "train-semi")
    write_photo(tmp_path / "test" / FISH / "a.JPEG")
    assert len(load(tmp_path).list_names()) == 2
    assert load(tmp_path, split="train-semi").name == "imagenet_s-train-semi"
    with pytest.raises(WhenceError, match=r"'test-segmentation' .* with masks: train-semi"):
        load(tmp_path, "imagenet_s", "test")


def test_broken_masks_are_named(tmp_path):
    write_subset(tmp_path)
    name = f"{FISH}/ILSVRC2012_val_00000001"
    mask = tmp_path / "validation-segmentation" / f"{name}.png"

    def find_problem():
        with pytest.raises(WhenceError, match="ILSVRC2012_val_00000001") as raised:
            load(tmp_path).read(f"{name}.JPEG")
        return str(raised.value)

    write_ids(mask, make_ids(1200))
    assert "numbers of classes above 1000" in find_problem()
    write_mask(mask, np.zeros((12, 20), dtype=np.uint8))
    assert "no RGB image, but one of mode L" in find_problem()
    write_ids(mask, make_ids(1)[:5])
    assert "20 x 5 pixels" in find_problem()
    break_file(mask)
    assert "is damaged" in find_problem()
    mask.unlink()
    assert "has no mask" in find_problem()
