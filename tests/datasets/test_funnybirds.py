import json

import numpy as np
import pytest

from tests.datasets.layouts import break_file, write_mask, write_photo, write_text
from whence import WhenceError
from whence.datasets import load

COLORS = {
    (2, 2): (170, 170, 170),  # body
    (3, 3): (255, 255, 0),  # beak
    (3, 4): (255, 255, 253),  # eyes
    (3, 5): (255, 255, 254),
    (8, 3): (255, 0, 1),  # feet
    (8, 4): (255, 0, 2),
    (5, 5): (0, 255, 1),  # wings
    (5, 6): (0, 255, 2),
    (6, 1): (0, 0, 255),  # tail
}
AROUND = {(0, 0): (204, 204, 204), (0, 1): (204, 204, 238)}
UNKNOWN = {(4, 4): (212, 90, 85)}


def make_map():
    colors = np.zeros((12, 20, 4), dtype=np.uint8)
    colors[..., 3] = 255
    for place, color in (COLORS | AROUND | UNKNOWN).items():
        colors[place][:3] = color
    return colors


def write_birds(folder, split="test", classes=(0, 0, 1)):
    write_text(folder / "classes.json", json.dumps([{"class_idx": 0, "parts": {"beak": 1}}]))
    write_text(folder / "parts.json", json.dumps({"beak": [{"model": "beak01.glb"}]}))
    birds = [{"class_idx": one, "camera_distance": 300} for one in classes]
    write_text(folder / f"dataset_{split}.json", json.dumps(birds))
    for number, one in enumerate(classes):
        write_photo(folder / split / str(one) / f"{number:06}.png")
        write_mask(folder / f"{split}_part_map" / str(one) / f"{number:06}.png", make_map())
    return folder


def test_birds_have_the_mask_of_body_and_parts(tmp_path):
    dataset = load(write_birds(tmp_path / "FunnyBirds"))
    assert load(tmp_path).list_names() == dataset.list_names()
    assert dataset.name == "funnybirds"
    assert dataset.list_names() == ["0/000000.png", "0/000001.png", "1/000002.png"]
    sample = dataset.read("1/000002.png")
    assert sample.label == 1
    assert sample.content.mode == "RGB"
    assert {tuple(place) for place in np.argwhere(sample.mask == 1)} == set(COLORS)
    assert {tuple(place) for place in np.argwhere(sample.mask == 255)} == set(UNKNOWN)
    assert all(sample.mask[place] == 0 for place in AROUND)


def test_splits_and_birds_without_maps(tmp_path):
    write_birds(tmp_path, "train", (3, 4))
    assert load(tmp_path).list_names() == ["3/000000.png", "4/000001.png"]
    with pytest.raises(WhenceError, match=r"'dataset_test.json' .*; splits: train"):
        load(tmp_path, split="test")
    for file in (tmp_path / "train_part_map").rglob("*.png"):
        file.unlink()
    for folder in ("3", "4", ""):
        (tmp_path / "train_part_map" / folder).rmdir()
    assert load(tmp_path).read("3/000000.png").mask is None


def test_broken_birds_are_named(tmp_path):
    write_birds(tmp_path)

    def find_problem(name):
        with pytest.raises(WhenceError, match=name) as raised:
            load(tmp_path).read(name)
        return str(raised.value)

    part_map = tmp_path / "test_part_map" / "0" / "000001.png"
    write_mask(part_map, make_map()[..., 0])
    assert "no RGB image, but one of mode L" in find_problem("0/000001.png")
    break_file(part_map)
    assert "is damaged" in find_problem("0/000001.png")
    part_map.unlink()
    assert "has no mask" in find_problem("0/000001.png")
    (tmp_path / "test" / "0" / "000000.png").unlink()
    assert "is not there" in find_problem("0/000000.png")


@pytest.mark.parametrize("content", ["no JSON", "{}", "[1]", '[{"class_idx": "0"}]', '{"a": 1}'])
def test_a_list_that_is_none_of_birds(tmp_path, content):
    write_birds(tmp_path)
    write_text(tmp_path / "dataset_test.json", content)
    with pytest.raises(WhenceError, match=r"dataset_test.json' (is not|holds)|holds no sample"):
        load(tmp_path)
