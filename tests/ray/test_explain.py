import io

import numpy as np
import pytest

from tests.saved import make_photo
from whence import explain
from whence.demo import FOLDER
from whence.errors import WhenceError
from whence.models import load

pa = pytest.importorskip("pyarrow")
pytest.importorskip("ray.data")

from whence.ray import Explain  # noqa: E402

PHOTOS = [make_photo(seed=seed) for seed in range(3)]


def _encode(photo) -> bytes:
    file = io.BytesIO()
    photo.save(file, "PNG")
    return file.getvalue()


def _check_rows(rows, model, inputs=PHOTOS, **arguments) -> None:
    """Compare rows with `whence.explain` of each input."""
    for row, photo in zip(rows.to_pylist(), inputs, strict=True):
        expected = explain(photo, model, **arguments)
        assert row["error"] == ""
        assert row["name"] == expected.target_names[0]
        assert row["target"] == expected.target[0].item()
        np.testing.assert_allclose(row["scores"], expected.scores[0].ravel(), atol=1e-6)


@pytest.fixture(scope="module")
def photos_of(image_model):
    return Explain(str(image_model), keep=["label"])


def test_contents_of_files_in_arrow(photos_of, image_model):
    table = pa.table({"id": [7, 8, 9], "bytes": list(map(_encode, PHOTOS)), "label": list("abc")})

    rows = photos_of(table)

    assert rows.column("id").to_pylist() == ["7", "8", "9"]
    assert rows.column("label").to_pylist() == ["a", "b", "c"]
    assert rows.schema.field("scores").type == pa.list_(pa.float32(), 16)
    _check_rows(rows, image_model)


def test_arrays_of_pixels_that_may_not_be_written_to(photos_of, image_model):
    pixels = np.stack([np.asarray(photo) for photo in PHOTOS])
    pixels.flags.writeable = False
    batch = {"image": pixels, "path": np.array(["a", "b", "c"]), "label": np.arange(3)}

    rows = photos_of(batch)

    assert rows.column("id").to_pylist() == ["a", "b", "c"]
    _check_rows(rows, image_model)


def test_paths_in_pandas(photos_of, image_model, tmp_path):
    pandas = pytest.importorskip("pandas")
    for index, photo in enumerate(PHOTOS):
        photo.save(tmp_path / f"{index}.png")
    paths = [str(tmp_path / f"{index}.png") for index in range(3)]

    rows = photos_of(pandas.DataFrame({"path": paths, "label": [1.0, 2.0, 3.0]}))

    assert rows.column("id").to_pylist() == paths
    _check_rows(rows, image_model)


def test_bad_rows_say_why(photos_of):
    contents = [_encode(PHOTOS[0]), b"no photo", None, _encode(PHOTOS[0])[:50]]
    table = pa.table({"id": list("abcd"), "bytes": contents, "label": [0, 1, 2, 3]})

    errors = photos_of(table).column("error").to_pylist()

    assert errors[0] == ""
    assert "not an image" in errors[1]
    assert "missing" in errors[2]
    assert "damaged" in errors[3]


def test_several_classes_in_half_precision(image_model):
    model = load(image_model)
    explained = Explain(model, classes=["dog", 2], scores="float16", method="gae", rules="stable")

    rows = explained({"id": np.array(["a"]), "image": np.asarray(PHOTOS[0])[None]})

    (row,) = rows.to_pylist()
    assert (row["target"], row["name"]) == ([1, 2], ["dog", "crane"])
    assert rows.schema.field("scores").type == pa.list_(pa.float16(), 32)
    expected = explain(PHOTOS[0], model, classes=["dog", 2], method="gae").scores.ravel()
    np.testing.assert_allclose(row["scores"], expected, rtol=1e-3)


def test_texts(text_model):
    texts = ["a wonderful film", "the film is awful , very bad"]

    rows = Explain(str(text_model))({"id": np.arange(2), "text": np.array(texts)})

    assert rows.column("tokens").to_pylist()[0] == explain(texts[0], text_model).tokens.strings[0]
    _check_rows(rows, text_model, texts)


def test_the_next_token_after_prompts():
    prompt = "Sara has a cat. Ben has a"
    explained = Explain(str(FOLDER / "stories"), column="prompt", target=" dog")

    (row,) = explained({"id": np.array([1]), "prompt": np.array([prompt])}).to_pylist()

    expected = explain(prompt, FOLDER / "stories", target=" dog", kind="text")
    assert row["name"] == expected.target_names[0]
    np.testing.assert_allclose(row["scores"], expected.scores[0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "batch", "sentence"),
    [
        ({"target": "horse"}, {}, "horse"),
        ({"method": "nonsense"}, {}, "nonsense"),
        ({"target": 1, "classes": 2}, {}, "not both"),
        ({"scores": "int8"}, {}, "float32 or float16"),
        ({"processor": len}, {}, "processor= is for a model object"),
        ({}, {"image": np.zeros((1, 8, 8, 3), np.uint8)}, "no column 'id'"),
        ({}, {"id": np.array(["a"]), "age": np.array([3])}, "No column seems to hold photos"),
        ({"id": "key"}, {"id": np.array(["a"]), "text": np.array(["b"])}, "no column 'key'"),
    ],
)
def test_wrong_arguments_and_batches_are_refused(image_model, arguments, batch, sentence):
    with pytest.raises(WhenceError, match=sentence):
        Explain(str(image_model), **arguments)(batch)


@pytest.mark.parametrize("kept", ["nothing", "name"])
def test_kept_columns_are_there_and_new(image_model, kept):
    batch = {"id": np.array(["a"]), "image": np.asarray(PHOTOS[0])[None], "name": np.array(["x"])}

    with pytest.raises(WhenceError, match=f"column '{kept}'"):
        Explain(str(image_model), keep=kept)(batch)


def test_a_batch_may_begin_with_a_row_that_holds_nothing(image_model):
    explained = Explain(str(image_model))
    contents = [None, _encode(PHOTOS[0])]

    rows = explained(pa.table({"id": ["a", "b"], "bytes": contents, "age": [3, 4]}))
    nothing = explained(pa.table({"id": ["c"], "bytes": pa.nulls(1, pa.binary()), "age": [5]}))

    assert [error != "" for error in rows.column("error").to_pylist()] == [True, False]
    assert "missing" in nothing.column("error")[0].as_py()


def test_an_empty_batch_does_not_choose_the_model():
    explained = Explain()

    assert explained(pa.table({"id": pa.nulls(0, pa.string())})).num_rows == 0

    rows = explained({"id": np.array([1]), "text": np.array(["a wonderful film"])})
    assert rows.column("error").to_pylist() == [""]
    assert rows.column("tokens")[0].as_py()


def test_a_target_that_a_model_object_lacks_is_refused(image_model):
    model = load(image_model)

    with pytest.raises(WhenceError, match="horse"):
        Explain(model, target="horse")

    assert Explain(model, compile=True)._explainer.loaded.compile
    assert not model.compile
