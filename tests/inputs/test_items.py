"""Rows of datasets, batches of data loaders, and labels beside inputs."""

import numpy as np
import pytest
import torch

from tests.saved import make_photo
from whence import WhenceError
from whence.inputs.items import drop_labels, find_column, is_stream, iterate, read_batch

PHOTO = make_photo()


@pytest.mark.parametrize(
    ("row", "kind", "column"),
    [
        ({"image": PHOTO, "label": 3}, None, "image"),
        ({"picture": PHOTO, "caption": "a cat"}, None, "picture"),
        ({"picture": PHOTO, "caption": "a cat"}, "text", "caption"),
        ({"id": "x", "sentence": "a good film"}, None, "sentence"),
        ({"left": PHOTO, "image": PHOTO}, None, "image"),
        ({"text": ["good", "bad"], "label": [1, 0]}, None, "text"),
        ({"img": [PHOTO, PHOTO], "label": [1, 0]}, "image", "img"),
    ],
)
def test_the_column_that_holds_the_input(row, kind, column):
    assert find_column(row, None, kind) == column


@pytest.mark.parametrize(
    ("row", "column", "kind", "message"),
    [
        ({"left": PHOTO, "right": PHOTO}, None, None, "Several columns hold images: left, right"),
        ({"title": "a", "body": "b"}, None, "text", "Several columns hold texts: title, body"),
        ({"id": 3, "label": 1}, None, None, "No column holds photos or texts; .* id, label"),
        ({"text": "good"}, None, "image", "No column holds images; the columns are text"),
        ({"text": None}, None, "text", r"No column holds texts; the columns are text\.$"),
        (
            {"text": "good", "text_pair": "bad"},
            None,
            None,
            "A pair of texts is explained as tokens",
        ),
        (
            {"text": "good", "label": 1},
            "review",
            None,
            "no column 'review'. The columns are text, label",
        ),
    ],
)
def test_columns_that_are_not_there(row, column, kind, message):
    with pytest.raises(WhenceError, match=message):
        find_column(row, column, kind)


def test_labels_are_left_out():
    pixels, labels = torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])
    assert drop_labels([pixels, labels]) is pixels
    assert drop_labels((PHOTO, 3)) is PHOTO
    assert drop_labels([("good", "bad"), labels]) == ("good", "bad")
    assert drop_labels([(PHOTO, 1), (PHOTO, 0)]) == [PHOTO, PHOTO]
    assert drop_labels(["good", "bad"]) == ["good", "bad"]
    assert drop_labels([pixels]) == [pixels]
    tokens = {"input_ids": labels[None], "labels": labels[:1]}
    assert list(read_batch(tokens)) == ["input_ids"]


def test_rows_that_are_prepared_already():
    """Rows of a tokenised or transformed dataset: no batch, some as lists, other columns beside."""
    row = {"input_ids": [5, 7, 9], "attention_mask": [1, 1, 1], "label": 1, "text": "a good film"}
    found = read_batch(row)
    assert {name: value.tolist() for name, value in found.items()} == {
        "input_ids": [[5, 7, 9]],
        "attention_mask": [[1, 1, 1]],
    }
    pixels = torch.zeros(3, 8, 8)
    assert read_batch({"pixel_values": pixels, "label": torch.tensor(1)})["pixel_values"].dim() == 4
    assert read_batch({"pixel_values": pixels[None], "id": "x"})["pixel_values"].dim() == 4
    assert read_batch(row, column="text") == ["a good film"]


def test_a_row_is_read_as_its_photo_or_text():
    (photo,) = read_batch({"image": PHOTO, "label": 3})
    assert np.array_equal(photo, PHOTO)
    assert read_batch({"text": ["good", "bad"]}) == ["good", "bad"]
    assert read_batch([{"text": "good", "id": 1}, {"text": "bad", "id": 2}]) == ["good", "bad"]


def test_what_is_read_one_by_one():
    class Indexed:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index * 10  # and no IndexError at the end, as in some datasets

    assert all(map(is_stream, (iter([]), {1, 2}, Indexed(), (x for x in "ab"))))
    whole = (PHOTO, "text", ["a"], ("a",), {"a": 1}, torch.zeros(1), np.zeros(1), None, 3)
    assert not any(map(is_stream, whole))
    assert list(iterate(Indexed())) == [0, 10, 20]


def test_a_table_is_not_a_list_of_its_columns():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(WhenceError, match="A DataFrame is a table; explain a column"):
        iterate(pandas.DataFrame({"text": ["good"]}))
