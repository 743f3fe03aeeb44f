"""The result of a run over many inputs, opened in Python."""

import shutil

import numpy as np
import pytest

import whence
from tests.distributed.results import explain_many
from tests.saved import make_photo
from whence import WhenceError

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Three photos and one that is broken."""
    home = tmp_path_factory.mktemp("opened")
    (home / "set").mkdir()
    for number in range(3):
        make_photo(40 + number, 36, seed=number).save(home / "set" / f"{number}.png")
    (home / "set" / "broken.png").write_bytes(b"no photo")
    return home


@pytest.fixture(scope="module")
def result(home, cropping_vit):
    explain_many([home / "set"], home / "stored", model=cropping_vit.name)
    return whence.open_result(home / "stored")


def test_explanations_by_id(result, home, cropping_vit):
    assert list(result) == ["0.png", "1.png", "2.png", "broken.png"]
    assert len(result) == 4
    assert "1.png" in result
    assert "9.png" not in result
    wanted = whence.explain(str(home / "set" / "1.png"), model=cropping_vit, method="tiba")
    stored = result["1.png"]
    assert np.allclose(stored.numpy(), wanted.numpy(), atol=1e-6)
    assert stored.classes()[0].name == wanted.classes()[0].name
    assert stored.photos is None
    assert "4 inputs, method tiba, model" in repr(result)


def test_an_input_is_joined_with_its_scores_again(result, home, cropping_vit):
    wanted = whence.explain(str(home / "set" / "2.png"), model=cropping_vit, method="tiba")
    restored = result.restore("2.png")
    assert restored.photos[0].box == wanted.photos[0].box
    assert restored.photos[0].has_crop
    assert np.allclose(restored.logits, wanted.logits, atol=1e-5)
    assert np.allclose(restored.numpy(), wanted.numpy(), atol=1e-6)
    restored.save(home / "figure.png")
    assert (home / "figure.png").stat().st_size > 1000


def test_what_failed(result):
    errors = result.list_errors()
    assert list(errors) == ["broken.png"]
    assert "not an image" in errors["broken.png"]
    for read in (result.__getitem__, result.restore):
        with pytest.raises(WhenceError, match=r"'broken.png' was not explained: The photo"):
            read("broken.png")
    with pytest.raises(WhenceError, match=r"has no row with the id '9.png'"):
        result["9.png"]


def test_rows_as_a_table(result):
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert list(table.columns) == ["id", "target", "name", "probability", "notes", "error"]
    assert sorted(table.id) == list(result)
    scores = result.to_pandas(["id", "scores"]).set_index("id").scores
    assert np.allclose(scores["1.png"], result["1.png"].numpy()[0])
    assert result.draw(2) == result.draw(2)
    assert set(result.draw(9)) == {"0.png", "1.png", "2.png"}
    with pytest.raises(WhenceError, match="no column 'colour'"):
        result.to_pandas(["colour"])


def test_inputs_and_models_that_are_gone(result, home, tmp_path):
    copy = shutil.copytree(home, tmp_path / "copy")
    run = copy / "stored" / "_whence" / "run.json"
    run.write_text(run.read_text().replace(str(home), str(copy)))
    (copy / "set" / "1.png").unlink()
    moved = whence.open_result(copy / "stored")
    with pytest.raises(WhenceError, match=r"'1.png': the input could not be read again"):
        moved.restore("1.png")
    assert moved["1.png"].scores.shape == result["1.png"].scores.shape
    with pytest.raises(WhenceError, match="no folder"):
        whence.open_result(copy / "stored", model=str(tmp_path / "gone")).restore("2.png")


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(WhenceError, match="holds no results of a run over many inputs"):
        whence.open_result(tmp_path)
    with pytest.raises(WhenceError, match="holds no results"):
        whence.open_result(tmp_path / "nowhere")
