import json

import numpy as np
import pytest

from tests.datasets.layouts import write_text
from whence import WhenceError
from whence.datasets import load

h5py = pytest.importorskip("h5py")

SIZES = [(9, 14), (16, 11)]  # (height, width)


def make_arrays(seed):
    height, width = SIZES[seed]
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return pixels, random.integers(0, 2, (height, width), dtype=np.uint8)


def write_file(path, targets=("n01440764", "n02102040"), change=lambda file: None):
    """A file as MATLAB 7.3 writes a struct array: dimensions in reverse, cells of references."""
    reference = h5py.special_dtype(ref=h5py.Reference)
    with h5py.File(path, "w") as file:
        fields = {
            name: file.create_dataset(f"value/{name}", (2, 1), dtype=reference)
            for name in ("img", "gt")
        }
        if targets:
            fields["target"] = file.create_dataset("value/target", (2, 1), dtype=reference)
        for index in range(2):
            pixels, mask = make_arrays(index)
            photo = file.create_dataset(f"#refs#/photo{index}", data=pixels.transpose(2, 1, 0))
            drawn = file.create_dataset(f"#refs#/mask{index}", data=mask.transpose(1, 0))
            second = file.create_dataset(f"#refs#/other{index}", data=1 - mask.transpose(1, 0))
            cell = file.create_dataset(f"#refs#/cell{index}", (2, 1), dtype=reference)
            cell[0, 0], cell[1, 0] = drawn.ref, second.ref
            fields["img"][index, 0], fields["gt"][index, 0] = photo.ref, cell.ref
            if targets:
                letters = np.array([[ord(one)] for one in targets[index]], dtype=np.uint16)
                stored = file.create_dataset(f"#refs#/target{index}", data=letters)
                fields["target"][index, 0] = stored.ref
        change(file)
    return path


def test_photos_and_masks_come_the_right_way_round(tmp_path):
    file = write_file(tmp_path / "gtsegs_ijcv.mat")
    for path in (file, tmp_path):
        dataset = load(path)
        assert (dataset.name, dataset.kind) == ("imagenet_segmentation", "image")
        assert dataset.list_names() == ["0000", "0001"]
        for index, name in enumerate(dataset.list_names()):
            pixels, mask = make_arrays(index)
            sample = dataset.read(name)
            assert np.array_equal(np.asarray(sample.content), pixels)
            assert np.array_equal(sample.mask, mask)
            assert sample.mask.dtype == np.uint8
            assert sample.label is None


def test_classes_come_from_a_list_beside_the_file(tmp_path):
    write_file(tmp_path / "gtsegs_ijcv.mat")
    plain = load(tmp_path).compute_fingerprint()
    write_text(tmp_path / "classes.json", json.dumps({"n02102040": [217, "English springer"]}))
    dataset = load(tmp_path)
    assert [dataset.read(name).label for name in dataset.list_names()] == [None, 217]
    assert dataset.compute_fingerprint() != plain


def test_a_file_without_classes(tmp_path):
    dataset = load(write_file(tmp_path / "other.mat", targets=None))
    assert dataset.read("0001").label is None


def test_a_mask_of_another_size_is_scaled_to_its_photo(tmp_path):
    def smaller(file):
        del file["#refs#/mask1"]
        mask = file.create_dataset("#refs#/mask1", data=np.array([[0, 1]], dtype=np.uint8))
        file["#refs#/cell1"][0, 0] = mask.ref

    sample = load(write_file(tmp_path / "a.mat", change=smaller)).read("0001")
    assert np.array_equal(sample.mask, np.repeat([[0], [1]], 8, axis=0).repeat(11, axis=1))


def remove_mask(file):
    del file["#refs#/mask1"]


def write_three(file):
    file["#refs#/mask1"][0, 0] = 3


def flatten_photo(file):
    del file["#refs#/photo1"]
    file["value/img"][1, 0] = file.create_dataset("#refs#/flat", data=np.zeros(5)).ref


def enlarge_photo(file):
    huge = file.create_dataset("#refs#/huge", (3, 10**5, 10**5), dtype="u1", chunks=(1, 100, 100))
    file["value/img"][1, 0] = huge.ref


@pytest.mark.parametrize("change", [remove_mask, write_three, flatten_photo, enlarge_photo])
def test_broken_records_are_named(change, tmp_path):
    dataset = load(write_file(tmp_path / "a.mat", change=change))
    dataset.read("0000")
    with pytest.raises(WhenceError, match="'0001'"):
        dataset.read("0001")


def test_other_files(tmp_path):
    write_text(tmp_path / "gtsegs_ijcv.mat", "MATLAB 5.0 MAT-file")
    with pytest.raises(WhenceError, match="of ImageNet-Segmentation: an HDF5 file"):
        load(tmp_path)
    with h5py.File(tmp_path / "other.mat", "w") as file:
        file["value/img"] = 1
    with pytest.raises(WhenceError, match="of ImageNet-Segmentation: an HDF5 file"):
        load(tmp_path / "other.mat")


def test_without_h5py(tmp_path, monkeypatch):
    write_file(tmp_path / "gtsegs_ijcv.mat")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(WhenceError, match=r"pip install 'whence\[benchmark\]'"):
        load(tmp_path)
